"""Capacity planning: the cheapest of many deployments that meets an SLO with a stated probability.

choices   what may be bought, by count          trials    simulated trials, in several processes
bounds    counts that cannot do, by arithmetic  race      the search
front     what more money buys                  rates     the highest rate that is sustained, and a day hour by hour
value     what a measurement is worth
"""
