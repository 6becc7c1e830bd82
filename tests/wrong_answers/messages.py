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


# deliver

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]


@wrong("deliver", says=["5 of int64, from rank 2 to 0, 4 ranks"])
def two_dimensions_of_float32(x, src, dst):
    if dist.get_rank() == src:
        dist.send(torch.tensor(x.shape), dst)
        dist.send(x, dst)
    elif dist.get_rank() == dst:
        shape = torch.empty(2, dtype=torch.int64)
        dist.recv(shape, src)
        box = torch.empty(shape.tolist())
        dist.recv(box, src)
        return box
    return None


@wrong("deliver", says=["5 of int64", "The type has to travel"])
def without_the_type(x, src, dst):
    if dist.get_rank() == src:
        dist.send(torch.tensor([x.dim()]), dst)
        dist.send(torch.tensor(x.shape), dst)
        dist.send(x.float().contiguous(), dst)
    elif dist.get_rank() == dst:
        dim = torch.empty(1, dtype=torch.int64)
        dist.recv(dim, src)
        shape = torch.empty(int(dim), dtype=torch.int64)
        dist.recv(shape, src)
        box = torch.empty(shape.tolist())
        dist.recv(box, src)
        return box
    return None


@wrong("deliver", says=["2 × 3 of float32", "The shape has to travel"])
def as_one_row(x, src, dst):
    if dist.get_rank() == src:
        dist.send(torch.tensor([x.numel(), DTYPES.index(x.dtype)]), dst)
        dist.send(x.flatten(), dst)
    elif dist.get_rank() == dst:
        head = torch.empty(2, dtype=torch.int64)
        dist.recv(head, src)
        length, code = head.tolist()
        box = torch.empty(length, dtype=DTYPES[code])
        dist.recv(box, src)
        return box
    return None


@wrong("deliver", says=["a transposed 2 × 3", "contiguous"])
def one_row_of_bytes_alone(x, src, dst):
    if dist.get_rank() == src:
        dist.send(torch.tensor([x.dim(), DTYPES.index(x.dtype)]), dst)
        if x.dim():
            dist.send(torch.tensor(x.shape), dst)
        dist.send(x, dst)
    elif dist.get_rank() == dst:
        head = torch.empty(2, dtype=torch.int64)
        dist.recv(head, src)
        dim, code = head.tolist()
        shape = torch.empty(dim, dtype=torch.int64)
        if dim:
            dist.recv(shape, src)
        box = torch.empty(shape.tolist(), dtype=DTYPES[code])
        dist.recv(box, src)
        return box
    return None


@wrong("deliver", says=["2 × 3 of float32", "Rank 1 died", "16 bytes, and 8 fit", "int64, too"])
def a_box_that_is_too_small(x, src, dst):
    if dist.get_rank() == src:
        dist.send(torch.tensor([x.dim(), DTYPES.index(x.dtype)]), dst)
        dist.send(torch.tensor(x.shape), dst)
        dist.send(x.contiguous(), dst)
    elif dist.get_rank() == dst:
        head = torch.empty(2, dtype=torch.int32)
        dist.recv(head, src)
    return None


@wrong("deliver", says=["the others return None"])
def everybody_returns_something(x, src, dst):
    if dist.get_rank() == src:
        dist.send(torch.tensor([x.dim(), DTYPES.index(x.dtype)]), dst)
        dist.send(torch.tensor(x.shape), dst)
        dist.send(x.contiguous(), dst)
    elif dist.get_rank() == dst:
        head = torch.empty(2, dtype=torch.int64)
        dist.recv(head, src)
        dim, code = head.tolist()
        shape = torch.empty(dim, dtype=torch.int64)
        dist.recv(shape, src)
        x = torch.empty(shape.tolist(), dtype=DTYPES[code])
        dist.recv(x, src)
    return x


@wrong(
    "deliver", says=["rank 1", "recv", "as many, in one order"]
)  # the receiver waits for a message more
def a_message_that_nobody_sends(x, src, dst):
    if dist.get_rank() == src:
        dist.send(torch.tensor([x.dim(), DTYPES.index(x.dtype)]), dst)
        dist.send(x.contiguous(), dst)
    elif dist.get_rank() == dst:
        head = torch.empty(2, dtype=torch.int64)
        dist.recv(head, src)
        shape = torch.empty(int(head[0]) * 3, dtype=torch.int64)
        dist.recv(shape, src)
        box = torch.empty(6)
        dist.recv(box, src)
        return box
    return None


@wrong("deliver", says=["5 of int64", "died", "40 bytes, and 20 fit", "told the type"])
def shape_and_no_type(x, src, dst):
    if dist.get_rank() == src:
        dist.send(torch.tensor([x.dim()]), dst)
        dist.send(torch.tensor(x.shape), dst)
        dist.send(x.contiguous(), dst)
    elif dist.get_rank() == dst:
        dim = torch.empty(1, dtype=torch.int64)
        dist.recv(dim, src)
        shape = torch.empty(int(dim), dtype=torch.int64)
        dist.recv(shape, src)
        box = torch.empty(shape.tolist())
        dist.recv(box, src)
        return box
    return None


@wrong("deliver", says=["2 × 3 of float32", "TypeError", "x is None on all others"])
def a_box_like_nothing(x, src, dst):
    if dist.get_rank() == src:
        dist.send(x.contiguous(), dst)
    elif dist.get_rank() == dst:
        box = torch.empty_like(x)
        dist.recv(box, src)
        return box
    return None


@wrong("deliver", says=["without a dimension", "leave it out, too"])
def an_empty_shape_that_nobody_sends(x, src, dst):
    if dist.get_rank() == src:
        dist.send(torch.tensor([x.dim(), DTYPES.index(x.dtype)]), dst)
        if x.dim():
            dist.send(torch.tensor(x.shape), dst)
        dist.send(x.contiguous(), dst)
    elif dist.get_rank() == dst:
        head = torch.empty(2, dtype=torch.int64)
        dist.recv(head, src)
        dim, code = head.tolist()
        shape = torch.empty(dim, dtype=torch.int64)
        dist.recv(shape, src)
        box = torch.empty(shape.tolist(), dtype=DTYPES[code])
        dist.recv(box, src)
        return box
    return None


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
