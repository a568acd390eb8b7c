"""Are the local chips sound? `examine` tells the story; docs/devices.md says what is run."""
