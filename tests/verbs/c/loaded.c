/*
 * Loads the libraries itself, as modules of other libraries and bindings of other languages do, with the flag that
 * its argument names, and prints the name of the first device.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **arguments)
{
    int flag = count > 1 && !strcmp(arguments[1], "global") ? RTLD_GLOBAL : RTLD_LOCAL, found = -1;
    void *verbs = dlopen("libibverbs.so.1", RTLD_NOW | flag), *cm = dlopen("librdmacm.so.1", RTLD_NOW | flag);
    void **(*list)(int *);
    const char *(*name)(void *);
    void *(*channel)(void);
    void **devices;

    if (!verbs || !cm) {
        puts(dlerror());
        return 1;
    }
    list = (void **(*)(int *))dlsym(verbs, "ibv_get_device_list");
    name = (const char *(*)(void *))dlsym(verbs, "ibv_get_device_name");
    channel = (void *(*)(void))dlsym(cm, "rdma_create_event_channel");
    devices = list(&found);
    printf("%d %s %d\n", found, devices ? name(devices[0]) : "none", channel() != NULL);
    return 0;
}
