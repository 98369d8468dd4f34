"""The tests of obc; `tests.cases` lists the models they all use."""
