"""Queues in formulas: mean waits of the few kinds of servers that a pair is made of.

Rates are a second, times in seconds. A queue that gets more than it can do waits for ever: its wait is infinite.
"""

from __future__ import annotations

import math


def erlang_c(servers: int, offered: float) -> float:
    """The probability that an arrival has to wait in M/M/c (Erlang 1917), where ``offered`` is arrivals a second times the mean
    of service; 1 where that is as much as the servers can do, or more.

    By the recursion of Erlang B, B(k) = aB(k-1) / (k + aB(k-1)), and C = B / (1 - rho + rho B).
    """
    if offered >= servers:
        return 1.0
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = offered * blocked / (count + offered * blocked)
    rho = offered / servers
    return blocked / (1 - rho + rho * blocked)


def queue_wait(servers: int, rate: float, service: float, variation: float = 1.0) -> float:
    """The mean wait before service in M/G/c, first come first served.

    Allen and Cunneen (1978): the wait of M/M/c, times half of the sum of the squared coefficients of variation of the times
    between arrivals (1, since they are Poisson) and of service (``variation``). Exact for M/M/c, and for one server, where it
    is Pollaczek and Khinchine's.
    """
    offered = rate * service
    if offered >= servers:
        return math.inf
    return erlang_c(servers, offered) * service / (servers - offered) * (1 + variation) / 2


def batch_size(rate: float, fixed: float, each: float, most: float) -> float:
    """The size of a batch in a steady stream: as many as arrive while one is served, n = rate (fixed + n each), and between 1
    and ``most``."""
    return max(1.0, min(most, rate * fixed / (1 - rate * each))) if rate * each < 1 else most


def batch_latency(rate: float, fixed: float, each: float, most: float) -> float:
    """The mean time from arrival to the end of service at a server that takes all that wait, at most ``most``, as one batch, of
    which n last ``fixed`` + n ``each``.

    The larger of two. Without a limit on batches: Inoue (2021), "Queueing analysis of GPU-based inference servers with dynamic
    batching: a closed-form characterization". With one, near what can be served: a server of full batches, whose arrivals
    come in groups of ``most`` (Kingman 1961; the squared coefficient of variation of the times between such groups is
    1 / ``most``). With ``most`` 1 it is M/D/1, exactly.
    """
    full = (fixed + most * each) / most
    rho = rate * full
    if rho >= 1:
        return math.inf
    crowded = fixed + batch_size(rate, fixed, each, most) * each + full * rho / (1 - rho) / 2
    if most == 1:
        return crowded
    load = rate * each
    early = (fixed + each) / (2 * (1 - load)) * (1 + 2 * rate * fixed + (1 - rate * fixed) / (1 + load))
    late = 1.5 * fixed / (1 - load) + each / 2 * (load + 2) / (1 - load * load)
    return max(min(early, late), crowded)


def split_share(servers: int, gain: float) -> float:
    """How far the choice of an encoder is from one queue for all (0), towards each item's being bound to one encoder (1).

    An item goes to the encoder that its content is bound to, unless that has more than 1.25 times its share. Fitted to a
    simulation of this rule with up to 32 encoders and loads up to 0.95 (``docs/scaling.md``); ``gain`` is the share of a
    batch's time that does not depend on its size. Balance is worth less there: who waits would not have been served sooner.
    """
    return min(1.0, 0.45 * (1 - gain) * math.pow(servers, -1 / 3) + 1.2 * gain)


def shared_line(rate: float, alone: float) -> float:
    """The mean time of a transfer that takes ``alone`` seconds where it has a line for itself, and shares it evenly with all
    others: M/G/1 by processor sharing, in which only the mean of what is transferred matters (Kleinrock 1976)."""
    load = rate * alone
    return alone / (1 - load) if load < 1 else math.inf


def group_wait(rate: float, service: float, mean: float, pairs: float) -> float:
    """What the mean wait at one server grows by where arrivals come in groups: M[X]/G/1 (Gross and Harris). ``mean`` is the
    mean of the group's size X, ``pairs`` that of X(X - 1); ``rate`` counts single arrivals."""
    load = rate * service
    if load >= 1:
        return math.inf
    return service * pairs / (2 * mean * (1 - load)) if mean else 0.0
