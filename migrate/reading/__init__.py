"""A script or a project as facts: edits nothing, knows no rule and no hazard."""
