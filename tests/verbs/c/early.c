/*
 * Says whether Python is there before the first call, forks, and calls in the child and then itself: "yes 1 1".
 */
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* A queue pair on the first device. */
static int has(void)
{
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_context *context = devices ? ibv_open_device(devices[0]) : NULL;
    struct ibv_qp_init_attr attr = {.cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};

    attr.send_cq = attr.recv_cq = context ? ibv_create_cq(context, 1, NULL, NULL, 0) : NULL;
    return attr.send_cq && ibv_create_qp(ibv_alloc_pd(context), &attr);
}

int main(void)
{
    int (*begun)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "Py_IsInitialized"), status;
    const char *early = begun && begun() ? "yes" : "no";
    pid_t child = fork();

    if (!child)
        return has();
    if (waitpid(child, &status, 0) != child)
        return 1;
    printf("%s %d %d\n", early, WIFEXITED(status) ? WEXITSTATUS(status) : -1, has());
    return 0;
}
