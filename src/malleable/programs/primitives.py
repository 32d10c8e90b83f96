"""What is known of each primitive: one row of facts, which every set of primitives asks.

    FUSIBLE = kind("elementwise", "dims") - has("iterative")  # a query, with its reason beside it

A fact is a word with one meaning, said in `KINDS` and `FACTS`; a primitive stands in one row. What
is done with a primitive (how it is batched, written in NumPy, padded) is code, and is elsewhere.
"""

from typing import NamedTuple

KINDS = {
    "elementwise": "each number of the result is made of one number of each operand",
    "complex": "so are these, of real and imaginary parts",
    "cast": "the same numbers as another dtype",
    "same": "the operand itself; only transformations of JAX tell the difference",
    "place": "the operand itself; it says where or how it is kept, or among which devices",
    "dims": "the same numbers, with dimensions added, dropped, merged, split or permuted",
    "rearrange": "the same numbers at other places along a dimension",
    "cut": "some of the numbers of one array",
    "join": "the numbers of several arrays in one",
    "write": "an array with some of its numbers replaced or combined with others",
    "create": "an array of no operand",
    "reduce": "a dimension folded by an associative operation",
    "cumulative": "so is each prefix of a dimension",
    "window": "so is each window",
    "search": "the place of an extremum",
    "sort": "numbers in order",
    "contract": "products, summed over a dimension",
    "linalg": "factorizations of matrices, and solutions of linear systems",
    "random": "random keys and numbers",
    "control": "a body run several times, or one of several",
    "call": "a body run once",
    "collective": "communication among devices",
    "reference": "it reads or writes what is mutable",
    "callback": "it calls code that is no XLA",
    "object": "it handles objects that stand for arrays",
    "token": "it orders effects, or checks at run time",
    "shape": "sizes that are symbols",
    "kernel": "it is for the inside of kernels, or is one",
    "sparse": "it handles sparse arrays",
    "marker": "it is ours: what a value or a position means, until somebody asks",
}

FACTS = {
    # of meaning
    "commutative": "its two operands may be swapped",
    "compares": "it orders two numbers, or says whether they are equal",
    "linear": "linear in all of its operands that are floats, taken together",
    "exact": "nothing is rounded: a number of the result is one of an operand's, but for its sign",
    "sum": "it adds",
    "associative": "its operands may be grouped in another way, but for rounding",
    "extremum": "it takes the largest or the smallest",
    "tame": "finite at 0 with its derivatives, and of what is finite and small",
    "partial": "of some finite numbers it is not finite, those that are far from 0 aside",
    "levels": "of a number far below 0 it is of ordinary size",
    "fieldwise": "of a value that is more than an array it is the same of each field",
    "local": "nothing is sent: how a value is thought of, or the end of what a `_start` began",
    "strong": "the type of its result is not weak, whatever its operand is",
    "squares": "it may multiply an operand by itself",
    "spreads": "NaN in an operand is NaN in the result, if that has numbers; a power of 0 aside",
    "draws": "it makes random numbers, as many as the result has",
    # of cost
    "free": "no operation on a number, at most a copy",
    "view": "NumPy gives a view of the operand",
    "cheap": "it is rather computed again than kept",
    "costly": "it takes much longer than an addition",
    "special": "it takes longer yet: a series or a table",
    "iterative": "it loops inside until a number converges",
    "cubic": "n**3 operations for a matrix of (n, n)",
    "long": "it takes longer than to keep its result, and is no decomposition",
    # of XLA:CPU; measured by benchmarks.rewriting where no source is given
    "fuses": "it is compiled into one kernel with its surroundings",
    "apart": "it is not fused with a reduction of its result",
    "recomputed": "it is computed again for each user",
    "kept": "its result goes to memory, and is not fused into its user",
    "whole": "it wants its operands in memory",
    # of versions
    "gone": "JAX 0.10 has it, JAX 0.12 has not",
    "new": "JAX 0.12 has it, JAX 0.10 has not",
}

# kind, then lines of names and, after a colon, what holds of each of them
_ROWS = """
elementwise
  add: linear sum associative commutative tame fuses spreads
  add_any: linear sum associative commutative spreads
  sub: linear sum tame fuses spreads
  neg: linear exact tame fuses spreads
  mul: associative commutative tame fuses squares spreads
  max min: associative commutative exact extremum tame fuses
  abs: exact tame fuses spreads
  square: tame fuses squares spreads
  div rsqrt sqrt: partial fuses spreads
  integer_pow: partial fuses squares spreads
  sign: tame levels fuses spreads
  clamp: exact apart fuses
  select_n: linear exact tame fuses
  eq ne: compares commutative tame fuses
  lt le gt ge: compares tame fuses
  and or: associative commutative tame fuses
  not: tame fuses
  xor: associative commutative
  ceil floor round: fuses spreads
  is_finite: fuses
  rem: partial
  nextafter mulhi clz population_count eq_to lt_to le_to
  shift_left shift_right_arithmetic shift_right_logical
  one_minus_square polynomial: new
  exp: levels costly recomputed fuses spreads
  log log1p: partial costly fuses spreads
  pow: partial costly fuses
  expm1: levels costly fuses spreads
  sin cos: costly tame apart recomputed fuses spreads
  tan: partial costly recomputed spreads
  tanh logistic: levels costly tame fuses spreads
  exp2 erf erfc atan: levels costly spreads
  acos asin erf_inv lgamma digamma: partial costly
  cbrt sinh cosh: costly spreads
  atan2: costly
  acosh asinh atanh: special
  log2: partial new spreads
  bessel_i0e bessel_i1e polygamma zeta: special
  igamma igammac regularized_incomplete_beta: special iterative
  igamma_grad_a: iterative
complex
  real imag: linear view
  conj complex: linear
cast
  convert_element_type: linear exact free tame fuses spreads
  bitcast_convert_type: free view
  reduce_precision: spreads
same
  copy: linear exact free cheap tame fuses spreads
  stop_gradient: exact free view cheap tame fuses spreads
place
  device_put: free view
  pvary: cheap local fieldwise
  preduced: local
  name optimization_barrier: fieldwise
  sharding_constraint layout_constraint reshard
  with_memory_space_constraint tie pin unpin
  reduced_vary_cast vary_unreduced_cast: local new
  reduced_vary_cast_p vary_unreduced_cast_p: local gone
  relayout xla_metadata_value: new
dims
  broadcast_in_dim reshape squeeze: linear exact free view cheap tame fuses spreads
  transpose: linear exact free view cheap tame apart fuses spreads
rearrange
  rev: linear exact free view cheap spreads
  tile: linear spreads
cut
  slice: linear exact free view
  dynamic_slice: linear exact free
  gather: linear exact free kept whole
  split: linear free view
  unstack: linear
join
  concatenate: linear exact free kept spreads
  pad: linear free
  stack: linear
write
  dynamic_update_slice: linear free
  scatter: linear
  scatter-add scatter-sub: linear sum
  scatter-mul scatter-min scatter-max
create
  iota: free cheap fuses
  empty empty2 zeros_like platform_index
reduce
  reduce_sum: linear sum spreads
  reduce_max reduce_min: exact extremum
  reduce_prod reduce_and reduce_or reduce_xor reduce
cumulative
  cumsum: linear sum long whole spreads
  cummax cummin: exact extremum
  cumprod cumlogsumexp
window
  reduce_window_sum: linear sum
  reduce_window_max reduce_window_min: extremum
  reduce_window select_and_scatter select_and_scatter_add select_and_gather_add
search
  argmax argmin: whole
sort
  sort: exact kept whole long
  top_k: exact
  approx_top_k
contract
  dot_general: long kept whole spreads
  conv_general_dilated: long whole
  ragged_dot_general scaled_dot fft
linalg
  cholesky lu triangular_solve eigh svd qr eig schur: cubic
  hessenberg householder_product tridiagonal geqp3 geqrf ormqr symmetric_product cholesky_update
  tridiagonal_solve lu_pivots_to_permutation custom_linear_solve
random
  random_bits threefry2x32 random_gamma rng_bit_generator: draws
  random_seed random_wrap random_unwrap random_split random_fold_in random_clone rng_uniform
  threefry4x32 philox2x32 philox4x32 iota_2x32_shape
control
  scan: long whole
  while cond
call
  jit stage eval_jaxpr remat2 remat_opt composite linear_call custom_jvp_call custom_vjp_call
  custom_jvp_call_jaxpr custom_vmap_call custom_partitioning custom_lin unreachable shard_map
  call_exported call_hi_primitive call_hi_primitive_linearized
  call closed_call: gone
  xla_metadata_call: new
collective
  psum psum_invariant unreduced_psum: linear sum strong
  pmax pmin all_to_all: strong
  all_gather all_gather_invariant all_gather_reduced ppermute pbroadcast reduce_scatter
  unreduced_reduce_scatter ragged_all_to_all psend precv axis_index
  psum_invariant_start all_gather_start all_gather_reduced_start all_to_all_start ppermute_start
  reduce_scatter_start
  psum_done all_gather_done all_to_all_done ppermute_done reduce_scatter_done: local
  pbroadcast_done: local gone
  psum_start pbroadcast_start unreduced_psum_start: gone
  unreduced_reduce_scatter_start: gone
  pbroadcast_dynamic unreduced_pmax unreduced_pmin: new
reference
  get swap addupdate accum_grad_in_ref new_ref empty_ref free_ref freeze get_global create_linear
  run_state
callback
  pure_callback io_callback debug_callback debug_print ffi_call inspect_sharding
object
  to_edtype from_edtype
  box_get box_set new_box log_extend log_read new_log: gone
token
  after_all create_token check shape_assertion dce_sink
shape
  dim_as_value dimension_size
kernel
  pallas_call mpmd_map run_scoped program_id num_programs delay masked_load masked_swap multiple_of
  semaphore_read semaphore_signal semaphore_wait broadcast_to reciprocal cudnn_fusion
  scaled_matmul scaled_matmul_wrapper dot_product_attention_fwd dot_product_attention_fwd_wrapper
  dot_product_attention_bwd dot_product_attention_bwd_wrapper dot_product_attention_fp8_fwd
  dot_product_attention_fp8_fwd_wrapper dot_product_attention_fp8_bwd
  dot_product_attention_fp8_bwd_wrapper
  core_map jaxpr_call: gone
sparse
  bcoo_dot_general bcoo_dot_general_sampled bcoo_extract bcoo_fromdense bcoo_sort_indices
  bcoo_spdot_general bcoo_sum_duplicates bcoo_todense bcoo_transpose bcsr_dot_general bcsr_extract
  bcsr_fromdense bcsr_todense coo_fromdense coo_matmat coo_matvec coo_spmm coo_spmv coo_todense
  csr_fromdense csr_matmat csr_matvec csr_spmm csr_spmv csr_todense spsolve todense
marker
  linear_loop
  own_derivative: free
"""


class Row(NamedTuple):
    """What is known of a primitive: its kind, and which facts hold of it."""

    kind: str
    facts: frozenset[str]


def _parsed_rows(text: str) -> dict[str, Row]:
    found: dict[str, Row] = {}
    of = ""
    for line in filter(None, text.splitlines()):
        if not line.startswith(" "):
            of = line
            continue
        names, _, facts = line.partition(":")
        row = Row(of, frozenset(facts.split()))
        if of not in KINDS or row.facts - FACTS.keys() or found.keys() & set(names.split()):
            raise AssertionError(f"a word without a meaning, or a primitive twice: {line.strip()}")
        found |= dict.fromkeys(names.split(), row)
    return found


PRIMITIVES = _parsed_rows(_ROWS)


def kind(*kinds: str) -> frozenset[str]:
    """The primitives of some kinds.

    >>> sorted(kind("dims"))
    ['broadcast_in_dim', 'reshape', 'squeeze', 'transpose']
    """
    if unknown := set(kinds) - KINDS.keys():
        raise ValueError(f"no kind of primitives: {unknown}")
    return frozenset(name for name, row in PRIMITIVES.items() if row.kind in kinds)


def has(*facts: str) -> frozenset[str]:
    """The primitives of which one of some facts holds.

    >>> sorted(has("compares") & has("commutative"))
    ['eq', 'ne']
    """
    if unknown := set(facts) - FACTS.keys():
        raise ValueError(f"no fact about primitives: {unknown}")
    return frozenset(n for n, row in PRIMITIVES.items() if not row.facts.isdisjoint(facts))
