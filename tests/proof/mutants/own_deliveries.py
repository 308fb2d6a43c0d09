"""Bugs of what a handle has in hand: what its owner knows too, what transactions take over, what is left at the end."""

from __future__ import annotations

from proof.mutants.mutation import Mutation

OWN_DELIVERIES = (
    Mutation(
        "what-came-ahead-is-held-by-name-only",
        "A transaction that takes what came while a thread waited commits, and the message comes again.",
        "queue/client/deliveries_in_hand.py",
        "            try:\n                self.hold((delivery,), holder)\n            except StaleReceiptError:\n"
        "                return []\n",
        "            delivery.holder = holder\n",
        "deliveries of the owner",
    ),
    Mutation(
        "block-left-open-behind-a-transaction",
        "A message whose block gave it to a transaction that aborts never comes again.",
        "queue/consumer/read_side.py",
        "                    self._leases.grant((copy,), each.lease_seconds)\n",
        "                    self._leases.grant((copy,), each.lease_seconds)\n"
        "                    copy.is_open = each.is_open\n",
        "deliveries of the owner",
    ),
    Mutation(
        "one-that-has-parted-keeps-the-others",
        "A transaction that has one message back from another one, and others anew, cannot commit.",
        "queue/consumer/read_side.py",
        "            for each in deliveries:\n                if self._leases.same((each,)):\n",
        "            for each in self._leases.same(deliveries) or ():\n"
        "                if self._leases.same((each,)):\n",
        "deliveries of the owner",
    ),
    Mutation(
        "given-back-behind-a-succession-counts",
        "What a handle gives back as it ends counts as failed if another owner has begun since it was taken.",
        "queue/client/deliveries_in_hand.py",
        "        with self.settling(left):\n",
        "        with self.settling([]):\n",
        "owners that die",
    ),
    Mutation(
        "what-ran-out-is-in-hand-at-the-end",
        "A handle that is shut down waits for a message that another one has finished.",
        "queue/client/deliveries_in_hand.py",
        "                not each.is_settled and (holder is None or each.holder is not holder)\n",
        "                holder is None or each.holder is not holder\n",
        "deliveries of the owner",
    ),
    Mutation(
        "extended-and-forgotten",
        "A lease runs out here while the owner extends it; the next owner is not told of it, and gives it to another.",
        "queue/client/lease_renewals.py",
        "            if is_here and (has_run_out or not delivery.is_settled):\n",
        "            if is_here and not delivery.is_settled:\n",
        "leases of clients",
    ),
)
"""In the order in which they are tried."""
