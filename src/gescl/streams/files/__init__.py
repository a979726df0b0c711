"""Getting and reading data files: catalogue, download, pickles, images, memory maps, cache, progress bar."""
