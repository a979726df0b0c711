"""The paper's experiments: what they are, how they are reproduced, and what became of its claims."""
