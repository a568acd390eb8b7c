"""Parts of a script, cut out of its source by what they compute."""
