"""The scheduler core: which waiting request gets a model's next free slot.

**The rules of this package.** It is pure. No I/O, no clock, no randomness, no logging, no await: an
event and the time go in, effects come out, and the same events at the same times give the same
effects. `Scheduler.handle` is the one door, and whoever calls it is the one owner; there are no
locks because there is nothing to race. It imports policy records and a sorted list.

**The model.** A pool is the slots of one model. In it stand groups, in groups tenants, in tenants
keys, and each key has a queue, first in, first out. A request is a `Waiter` until it is admitted,
then a `Slot` until it ends. Nothing is preempted.

**The choice** has three parts, each in a module of its own:

* `shares.py`, how the pool is cut: weights to whole slots, for those that have work;
* `fairness.py`, who stands where: scores, virtual time, no saved-up credit;
* `order.py`, who is next: under its share first, lowest score first, and lending what is left.

Within a key the queue's order can be bent by `affinity.py`, where a model wants it: sessions whose
prompts are still cached go ahead, and slots are held for their next steps, within limits.

**Why nobody waits for ever.** Each admission raises the score of its key, tenant and group by a
positive amount, a newcomer joins no lower than the virtual time, and the virtual time never falls;
so a waiter's rivals can be admitted only a bounded number of times before their scores exceed its
own, and then it is first by score. Its share cannot keep it out: if it occupies nothing it counts
as under its share, and if it occupies something the slots it waits for are its own siblings'.

**What it costs.** A pick, an arrival and a release each touch one key, one tenant and one group:
a few sorted-list operations, logarithmic in the number of siblings that wait. Shares are cut anew
when somebody starts or stops having work, which costs no more than the number of distinct weights
that are worth a slot.
"""
