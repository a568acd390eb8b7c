"""A torch optimizer and its schedules, from the record of a run to the source of `optimizer.py`.

`choice.py` compares the rates of each written optimizer with torch's. `check.py` compares whole updates: the
tests call it for each class, a port does not, since it takes many seconds for a large model. A port compares
the weights after the recorded updates (`migrate.train.proof`).
"""
