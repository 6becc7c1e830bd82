"""Wrong answers to the exercises of chapter 06."""

import torch
import torch.distributed as dist

from wrong_answers import wrong


def _ring():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return rank, world_size, (rank - 1) % world_size, (rank + 1) % world_size


# from_left


@wrong(
    "from_left", says=["1 number, 4 ranks", "circle", "dist.send(x, right)", "begin with the other"]
)
def as_it_was(x):
    _, _, left, right = _ring()
    box = torch.empty_like(x)
    dist.send(x, right)
    dist.recv(box, left)
    return box


@wrong("from_left", says=["1 number, 1 rank", "no messages to oneself"])
def not_for_a_rank_alone(x):
    rank, _, left, right = _ring()
    box = torch.empty_like(x)
    if rank == 0:
        dist.recv(box, left)
        dist.send(x, right)
    else:
        dist.send(x, right)
        dist.recv(box, left)
    return box


@wrong("from_left", says=["1 number, 4 ranks", "right neighbor's x"])
def from_the_right(x):
    rank, _, left, right = _ring()
    box = torch.empty_like(x)
    if rank == 0:
        dist.recv(box, right)
        dist.send(x, left)
    else:
        dist.send(x, left)
        dist.recv(box, right)
    return box


@wrong("from_left", says=["of messages alone", "its left neighbor"])
def by_a_collective(x):
    _, world_size, left, _ = _ring()
    boxes = [torch.empty_like(x) for _ in range(world_size)]
    dist.all_gather(boxes, x)
    return boxes[left]


@wrong("from_left", says=["x", "changed"])
def x_as_the_box(x):
    rank, _, left, right = _ring()
    old = x.clone()
    if rank == 0:
        dist.recv(x, left)
        dist.send(old, right)
    else:
        dist.send(old, right)
        dist.recv(x, left)
    return x


@wrong("from_left", says=["is a `return` missing", "What came is in the box"])
def without_a_return(x):
    rank, _, left, right = _ring()
    box = torch.empty_like(x)
    if rank == 0:
        dist.recv(box, left)
        dist.send(x, right)
    else:
        dist.send(x, right)
        dist.recv(box, left)


@wrong("from_left", says=["own x still"])
def returns_what_it_sent(x):
    rank, _, left, right = _ring()
    box = torch.empty_like(x)
    if rank == 0:
        dist.recv(box, left)
        dist.send(x, right)
    else:
        dist.send(x, right)
        dist.recv(box, left)
    return x


@wrong("from_left", says=["2 × 3 numbers, 3 ranks"])
def one_number_for_four(x):
    return torch.tensor([10.0 * ((dist.get_rank() - 1) % 4)])


# exchange


@wrong("exchange", says=["circle", "wait only then"])
def waiting_at_once(letters):
    boxes = [torch.empty_like(letter) for letter in letters]
    for other in range(dist.get_world_size()):
        if other == dist.get_rank():
            boxes[other].copy_(letters[other])
        else:
            dist.isend(letters[other], other).wait()
            dist.irecv(boxes[other], other).wait()
    return boxes


@wrong("exchange", says=["1 number each, 4 ranks", "letter to oneself is missing"])
def without_ones_own(letters):
    boxes, handles = [torch.full_like(letter, -1) for letter in letters], []
    for other in range(dist.get_world_size()):
        if other != dist.get_rank():
            handles.append(dist.isend(letters[other], other))
            handles.append(dist.irecv(boxes[other], other))
    for handle in handles:
        handle.wait()
    return boxes


@wrong("exchange", says=["1 number each, 4 ranks", "no messages to oneself"])
def to_oneself_too(letters):
    boxes, handles = [torch.empty_like(letter) for letter in letters], []
    for other in range(dist.get_world_size()):
        handles.append(dist.isend(letters[other], other))
        handles.append(dist.irecv(boxes[other], other))
    for handle in handles:
        handle.wait()
    return boxes


@wrong("exchange", says=["letters", "changed"])
def letters_as_boxes(letters):
    handles, copies = [], [letter.clone() for letter in letters]
    for other in range(dist.get_world_size()):
        if other != dist.get_rank():
            handles.append(dist.isend(copies[other], other))
            handles.append(dist.irecv(letters[other], other))
    for handle in handles:
        handle.wait()
    return letters


@wrong("exchange", says=["1 number each, 4 ranks", "letters[r] is for rank r"])
def the_same_letter_to_all(letters):
    boxes, handles = [torch.empty_like(letter) for letter in letters], []
    for other in range(dist.get_world_size()):
        if other == dist.get_rank():
            boxes[other].copy_(letters[other])
        else:
            handles.append(dist.isend(letters[0], other))
            handles.append(dist.irecv(boxes[other], other))
    for handle in handles:
        handle.wait()
    return boxes


@wrong("exchange", says=["It got stuck", "keep all the handles"])
def handles_thrown_away(letters):
    boxes, handles = [torch.empty_like(letter) for letter in letters], []
    for other in range(dist.get_world_size()):
        if other == dist.get_rank():
            boxes[other].copy_(letters[other])
        else:
            dist.isend(letters[other], other)
    dist.barrier()
    for other in range(dist.get_world_size()):
        if other != dist.get_rank():
            handles.append(dist.irecv(boxes[other], other))
    for handle in handles:
        handle.wait()
    return boxes


# pass_along


@wrong(
    "pass_along", says=["6 pieces, 1 number each, 4 ranks", "takes 24", "Pass a piece on as soon"]
)
def all_at_the_end(pieces, work):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    boxes = pieces
    if rank > 0:
        boxes = [torch.empty_like(piece) for piece in pieces]
        for box in boxes:
            dist.recv(box, rank - 1)
    done = [work(box) for box in boxes]
    if rank == last:
        return done
    for piece in done:
        dist.send(piece, rank + 1)
    return None


@wrong("pass_along", says=["pieces", "changed", "a box of your own"])
def pieces_as_boxes(pieces, work):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    done = []
    for piece in pieces:
        if rank > 0:
            dist.recv(piece, rank - 1)
        done.append(work(piece))
        if rank < last:
            dist.send(done[-1], rank + 1)
    return done if rank == last else None


@wrong("pass_along", says=["Rank 0 returned something", "has nothing to return"])
def everybody_returns_them(pieces, work):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    done = []
    for piece in pieces:
        box = piece.clone()
        if rank > 0:
            dist.recv(box, rank - 1)
        done.append(work(box))
        if rank < last:
            dist.send(done[-1], rank + 1)
    return done


@wrong("pass_along", says=["The last rank should return", "one and the same tensor"])
def one_box_for_all(pieces, work):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    box, done = torch.empty_like(pieces[0]), []
    for piece in pieces:
        if rank == 0:
            box.copy_(piece)
        else:
            dist.recv(box, rank - 1)
        box.copy_(work(box))
        done.append(box)
        if rank < last:
            dist.send(box, rank + 1)
    return done if rank == last else None


@wrong("pass_along", says=["wait in a circle", "rank 3 waits to receive"])
def around_the_ring(pieces, work):
    rank, world_size, left, right = _ring()
    done = []
    for piece in pieces:
        box = torch.empty_like(piece)
        dist.recv(box, left)
        done.append(work(box))
        dist.send(done[-1], right)
    return done if rank == world_size - 1 else None


@wrong("pass_along", says=["It got stuck", "its handle was not kept"])
def sent_without_a_handle(pieces, work):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    done = []
    for piece in pieces:
        if rank > 0:
            box = torch.empty_like(piece)
            dist.recv(box, rank - 1)
            piece = box
        done.append(work(piece))
        if rank < last:
            dist.isend(done[-1], rank + 1)
    return done if rank == last else None


@wrong("pass_along", says=["The last rank should return", "only after the wait()"])
def received_without_waiting(pieces, work):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    done = []
    for piece in pieces:
        if rank > 0:
            box = torch.zeros_like(piece)
            dist.irecv(box, rank - 1)
            piece = box
        done.append(work(piece))
        if rank < last:
            dist.send(done[-1], rank + 1)
    return done if rank == last else None
