"""Where samples come from: downloads, archives, image files, and the cache of decoded arrays."""
