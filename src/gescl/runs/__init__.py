"""One run: the recipe that decides it, the experiment that does it, the result it comes to, and watching it."""
