"""Which of the code of a project runs on an accelerator, and on which device."""
