"""What a project means: facts on `ast` across its files. Knows no rule.

`project` finds the files; `calls` what names, calls and values are; `objects`, `processes`, `draws` and
`replicated` answer from these. `migrate.model.facts` joins the answers for one file (`ModuleCalls`).
"""
