"""What a GPU that has rested computes faster than the grids say: constants, and the measurement that they are from.

A grid repeats its cells one after another, so its prices are of a GPU that its power limit holds back. Measured on one H100 (`clocks`,
steps of chunks in a row, the card's clocks beside): at rest it clocks at 1,980 MHz; a tenth of a second into prefill, at 700 to 850 W of
its 700, at some 1,600. The first chunk of 2,048 tokens is 6 % faster than those from 0.2 s on, after a second of decodes as after idleness,
of 0.3 s as of 2; the second is 2 %. A rest saves 4 ms of chunks of 2,048 in a row and 7 of chunks of 8,192 (a test holds the constants to
that); 4 to 5 at the beginning of a grid's visit, and some 14 in the first 0.65 s of ladder waves of eight servers. They are for 7.
"""

from __future__ import annotations

from sim.engine.boost import Boost

BOOST = Boost(share=0.06, budget_s=0.12, refill=0.4)  # of the refill no more is known than that 0.3 s of quiet are enough
