"""One changed variable, two arms, one verdict. A small TOML says all of it; `ready/` holds nine.

definition   the TOML → an `Experiment`: its settings, each with a workload, a load and two arms
library      those that come with the program, by name, and any file by its path
effects      the expected effect in closed form, from the arms alone
virtual      one arm's run in virtual time → the summary that a run over HTTP has
verdict      the differences of the pairs → is it as expected?
"""
