"""Meaning of a project: facts from `ast` across its files, independent of rules.

`project` finds the files. `calls` resolves names, calls and values. `objects`, `processes`, `draws` and
`replicated` build on these. `migrate.model.facts` joins the answers for one file (`ModuleCalls`).
"""
