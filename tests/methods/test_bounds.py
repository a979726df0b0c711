"""The bounds that methods are compared with: finetune, frozen and joint, hook by hook."""

from __future__ import annotations

import pytest

from gescl import Finetune, Frozen, Joint, UsageError

from ..conftest import stripes
from ..oracles.linear import linear_model
from .learners import context_of

A, B, C = (stripes(name, 2, shape=(1, 2, 3)) for name in "abc")


def test_finetune_holds_adds_and_keeps_nothing() -> None:
    net, split, _ = linear_model(classes=2, images=4)
    strategy, context = Finetune().strategy(net), context_of(split, 1)
    assert strategy.net is net and strategy.method == Finetune()
    assert strategy.shown(1, B, [A]) == [(1, B)]
    assert strategy.fixed(context) is None and strategy.settled(context)
    assert list(strategy.own_parameters()) == list(strategy.tracked()) == []
    assert strategy.state() == strategy.filters() == {} and strategy.capacity() is None
    with pytest.raises(UsageError, match=r"tensor method\.used"):
        strategy.load_state({"used": split.labels})


def test_frozen_fixes_every_filter_but_for_the_first_task() -> None:
    net, split, _ = linear_model(classes=3, images=4)
    strategy = Frozen().strategy(net)
    assert strategy.method == Frozen()
    assert [strategy.fixed(context_of(split, index)).tolist() for index in range(3)] == [
        [False] * 3,
        [True] * 3,
        [True] * 3,
    ]


def test_joint_shows_the_images_of_all_tasks_so_far_and_forgets_one_that_failed() -> None:
    net, _, _ = linear_model(classes=2, images=4)
    strategy = Joint().strategy(net)
    assert net.shared_statistics is True and strategy.net is net and strategy.method == Joint()
    assert strategy.shown(0, A, []) == [(0, A)]
    assert strategy.shown(1, C, []) == [(0, A), (1, C)]
    assert strategy.shown(1, B, []) == [(0, A), (1, B)], "C failed"
    assert strategy.shown(2, C, [B, A]) == [(0, A), (1, B), (2, C)], "its own are enough"


def test_joint_needs_what_it_has_not_seen() -> None:
    strategy = Joint().strategy(linear_model(classes=2, images=4)[0])
    with pytest.raises(UsageError, match=r"'c' together with the 2 before it .*earlier="):
        strategy.shown(2, C, [A])
    assert strategy.shown(2, C, [A, B]) == [(0, A), (1, B), (2, C)]
    assert strategy.shown(3, B, []) == [(0, A), (1, B), (2, C), (3, B)]
