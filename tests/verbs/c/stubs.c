/*
 * A program that calls stubs: private functions, and those of the first version.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "checks.h"

int ibv_cmd_alloc_pd(void *context, void *pd, void *command, size_t size, void *response, size_t room);
void *_verbs_init_and_alloc_context(void *device, int fd, size_t size, void *context, unsigned driver);
void verbs_register_driver_34(const void *ops);
const char *ibv_wr_opcode_str(int opcode);
extern char verbs_allow_disassociate_destroy;
void **first(int *count);
int query(void *context, unsigned char port, void *attr);
__asm__(".symver first, ibv_get_device_list@IBVERBS_1.0");
__asm__(".symver query, ibv_query_port@IBVERBS_1.0");

int main(void)
{
    verbs_register_driver_34(NULL);
    IS(ibv_cmd_alloc_pd(NULL, NULL, NULL, 0, NULL, 0), ENOSYS);
    errno = 0;
    IS(_verbs_init_and_alloc_context(NULL, 0, 0, NULL, 0) == NULL, 1);
    IS(errno, ENOSYS);
    IS(strcmp(ibv_wr_opcode_str(0), "unknown"), 0);
    IS(verbs_allow_disassociate_destroy, 0);
    IS(first(NULL) == NULL, 1);
    IS(query(NULL, 1, NULL), ENOSYS);
    return !!failures;
}
