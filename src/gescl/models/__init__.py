"""A saved model's life: learn folders into it, ask it, test it, look inside, export it."""
