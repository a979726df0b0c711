"""A run in MLflow, for those who keep their experiments there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import DataError, UnavailableError, missing_extra
from .scalars import ScalarLog

#: The tag by which a run that was stopped is found again.
FOLDER = "gescl.folder"


class MlflowLog(ScalarLog):
    """Logs what a run measures to a tracking server or database, `uri`, as MLflow names it.

    with MlflowLog("sqlite:///mlflow.db", "scripts", "gescl seed 0", settings, folder, epochs=15) as log: …

    A run of the same folder that was not finished is continued there, too. The process's own MLflow settings are
    neither read nor changed, except that without `uri` the usual one is used.
    """

    def __init__(
        self, uri: str | None, experiment: str, name: str, settings: Mapping[str, Any], folder: Path, epochs: int
    ) -> None:
        super().__init__(epochs)
        try:
            from mlflow import MlflowClient  # an extra, and slow to import
            from mlflow.exceptions import MlflowException
        except ImportError as error:
            raise UnavailableError(missing_extra("MLflow", "mlflow")) from error
        try:
            self._client = MlflowClient(tracking_uri=uri)
            known = self._client.get_experiment_by_name(experiment)
            number = self._client.create_experiment(experiment) if known is None else known.experiment_id
            self._run = self._continued(number, folder) or self._begun(number, name, settings, folder)
        except (MlflowException, ImportError) as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise DataError(f"MLflow at {uri or 'its usual place'} cannot be used: {first}") from error

    def _continued(self, experiment: str, folder: Path) -> str | None:
        for run in self._client.search_runs([experiment]):
            if run.data.tags.get(FOLDER) == str(folder.resolve()) and run.info.status != "FINISHED":
                self._client.update_run(run.info.run_id, status="RUNNING")
                return str(run.info.run_id)
        return None

    def _begun(self, experiment: str, name: str, settings: Mapping[str, Any], folder: Path) -> str:
        run = self._client.create_run(experiment, run_name=name, tags={FOLDER: str(folder.resolve())})
        for key, value in settings.items():
            self._client.log_param(run.info.run_id, key, value)
        return str(run.info.run_id)

    def __enter__(self) -> MlflowLog:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        self._client.set_terminated(self._run, "FINISHED" if kind is None else "FAILED")

    def add(self, name: str, value: float, step: int) -> None:
        allowed = re.sub(r"[^\w\-. /:]", "_", name, flags=re.ASCII)
        self._client.log_metric(self._run, allowed, value, step=step)
