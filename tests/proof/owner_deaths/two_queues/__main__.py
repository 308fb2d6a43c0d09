"""``python -m proof.owner_deaths.two_queues``: transactions over two queues; each process dies everywhere."""

from proof.owner_deaths.__main__ import programme
from proof.owner_deaths.two_queues.history import ROUNDS, Tally, judged_history

main = programme("owner-deaths-of-two", judged_history, Tally, 12, ROUNDS)

if __name__ == "__main__":
    main()
