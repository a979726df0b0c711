"""Many runs: the settings to try, where to run them, and the choice between them on validation images."""
