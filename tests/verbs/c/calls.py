"""
A C program that calls each function of libibverbs with null pointers and with destroyed objects.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from twisted_ib.verbs.c.functions import Failure, Row

#: Objects by the types of pointers to them, in the order of making: name, how it is made, how destroyed.
_OBJECTS = {
    "struct ibv_context *": ("context", "ibv_open_device(list[0])", "ibv_close_device"),
    "struct ibv_pd *": ("pd", "ibv_alloc_pd(context)", "ibv_dealloc_pd"),
    "struct ibv_td *": ("td", "ibv_alloc_td(context, &thread)", "ibv_dealloc_td"),
    "struct ibv_mr *": ("mr", "ibv_reg_mr(pd, memory, 4096, 7)", "ibv_dereg_mr"),
    "struct ibv_dm *": ("dm", "ibv_alloc_dm(context, &dmWanted)", "ibv_free_dm"),
    "struct ibv_mw *": ("mw", "ibv_alloc_mw(pd, IBV_MW_TYPE_2)", "ibv_dealloc_mw"),
    "struct ibv_comp_channel *": (
        "channel",
        "ibv_create_comp_channel(context)",
        "ibv_destroy_comp_channel",
    ),
    "struct ibv_cq *": ("cq", "ibv_create_cq(context, 8, NULL, channel, 0)", "ibv_destroy_cq"),
    "struct ibv_cq_ex *": ("cqx", "ibv_create_cq_ex(context, &cqxWanted)", "destroy_cqx"),
    "struct ibv_srq *": ("srq", "ibv_create_srq(pd, &srqWanted)", "ibv_destroy_srq"),
    "struct ibv_qp *": ("qp", "ibv_create_qp(pd, wanted(&qpWanted, cq))", "ibv_destroy_qp"),
    "struct ibv_qp_ex *": ("qpx", "extended(context, pd, cq)", "destroy_qpx"),
    "struct ibv_ah *": ("ah", "ibv_create_ah(pd, itself(context, &address))", "ibv_destroy_ah"),
}
#: The structures with the pointers of functions that are not exported.
_THROUGH = (
    ("struct ibv_context_ops", "context->ops"),
    ("struct verbs_context", "(*verbs_get_ctx(context))"),
    ("struct ibv_dm", "(*dm)"),
    ("struct ibv_cq_ex", "(*cqx)"),
    ("struct ibv_qp_ex", "(*qpx)"),
)

_START = """
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <string.h>
#undef ibv_reg_mr_iova
#undef ibv_query_port
extern int ibv_query_gid_type();
static char memory[65536];
static struct ibv_td_init_attr thread;
static struct ibv_alloc_dm_attr dmWanted = {.length = 4096};
static struct ibv_cq_init_attr_ex cqxWanted = {.cqe = 8, .wc_flags = IBV_WC_STANDARD_FLAGS};
static struct ibv_srq_init_attr srqWanted = {.attr = {8, 1, 0}};
static struct ibv_qp_init_attr qpWanted;
static struct ibv_ah_attr address = {.is_global = 1, .port_num = 1};
static struct ibv_qp_init_attr *wanted(struct ibv_qp_init_attr *attr, struct ibv_cq *cq) {
    attr->send_cq = attr->recv_cq = cq; attr->qp_type = IBV_QPT_RC; attr->cap.max_send_wr = 4; return attr; }
static struct ibv_qp_ex *extended(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *cq) {
    struct ibv_qp_init_attr_ex attr = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = IBV_QP_EX_WITH_SEND, .cap = {4, 4, 1, 1, 0}};
    struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);
    return qp ? ibv_qp_to_qp_ex(qp) : NULL; }
static struct ibv_ah_attr *itself(struct ibv_context *context, struct ibv_ah_attr *attr) {
    ibv_query_gid(context, 1, 0, &attr->grh.dgid); return attr; }
static int destroy_cqx(struct ibv_cq_ex *cq) { return ibv_destroy_cq(ibv_cq_ex_to_cq(cq)); }
static int destroy_qpx(struct ibv_qp_ex *qp) { return ibv_destroy_qp(&qp->qp_base); }
int main(void) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    errno = 0;
"""


def _types(row: Row) -> list[str]:
    if row.parameters == "void":
        return []
    return [re.sub(r"\w+$", "", each.strip()).strip() for each in row.parameters.split(",")]


def _call(row: Row, arguments: Sequence[str]) -> str:
    called = row.name if row.version else f"p_{row.name}"
    call = f"{called}({', '.join(arguments)})"
    result = f"(long){call}" if row.failure is not Failure.NOTHING else f"({call}, 0)"
    shown = f'printf("{row.name} %ld %d\\n", result, errno);'
    return f"    {{ errno = 0; long result = {result}; {shown} fflush(stdout); }}\n"


def program(table: Sequence[Row], fields: dict[str, list[str]], isFreed: bool) -> str:
    """
    @param table: the functions.
    @param fields: the pointers of each structure that has some.
    @param isFreed: with objects that were destroyed, and memory for all else; else with null pointers.
    @return: the program; it prints each function's name, its result and errno, and C{end}.
    """
    parts = [_START]
    for kind, (name, make, _) in _OBJECTS.items():
        parts.append(f'    {kind}{name} = {make};\n    if (!{name}) {{ perror("{name}"); return 3; }}\n')
    for structure, place in _THROUGH:
        parts += [
            f"    __typeof__({place}.{name}) p_{name} = {place}.{name};\n" for name in fields[structure]
        ]
    for name, _, destroy in reversed(list(_OBJECTS.values())):
        parts.append(f'    if ({destroy}({name})) {{ printf("{destroy}\\n"); return 4; }}\n')
    for row in table:
        arguments = []
        for kind in _types(row):
            if not kind.endswith("*"):
                arguments.append("0")
            elif not isFreed:
                arguments.append("NULL")
            elif kind in _OBJECTS:
                arguments.append(_OBJECTS[kind][0])
            else:
                arguments.append("(void *)memory")
        parts.append(_call(row, arguments))
    parts.append('    puts("end");\n    return 0;\n}\n')
    return "".join(parts)
