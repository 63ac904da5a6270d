"""The seconds of an iteration are those of its terms, each once: stages of the GPU, costs of the host and of links."""

from sim.cost.step_time import Terms, total_s


def test_every_term_counts_once():
    powers = [2.0**i for i in range(len(Terms._fields))]
    assert total_s(Terms(*powers)) == sum(powers)
