/*
 * Libraries of RDMA that a package of Python carries, as wheels do: under names of their own, libibverbs-1de1263b.so.1,
 * in a folder of theirs, to which what they were built with leads the loader whatever LD_LIBRARY_PATH has.  Before a
 * program opens a library with such a folder in its path the libraries beside this one are opened for all: the loader
 * looks for functions there first, by name and version, whatever file was to have them.  view.c includes this.
 */

#include <elf.h>
#include <link.h>
#include <sys/mman.h>

static const char *const OWN[] = {"libibverbs.so.1", "librdmacm.so.1", "libibumad.so.3"};
static const char ORIGIN[] = "$ORIGIN";

typedef void *opener(const char *, int);

/* Whether a folder has a library of those names, or of one made from them. */
static int carries(const char *folder)
{
    DIR *files = opendir(folder);
    struct dirent *file;
    int found = 0;

    while (files != NULL && !found && (file = readdir(files)) != NULL)
        for (unsigned index = 0; index < sizeof OWN / sizeof *OWN; index++)
            found |= begins(file->d_name, OWN[index], strcspn(OWN[index], "."), "-.");
    if (files != NULL)
        closedir(files);
    return found;
}

/* Whether one of the folders of a library's path, those that are named from its own, has some. */
static int leads(const char *path, const char *folders)
{
    int length = strrchr(path, '/') - path;
    char folder[PATH_MAX];

    for (; *folders != '\0'; folders += strcspn(folders, ":"), folders += *folders == ':') {
        int rest = (int)strcspn(folders, ":") - (int)(sizeof ORIGIN - 1);

        if (rest < 0 || strncmp(folders, ORIGIN, sizeof ORIGIN - 1) != 0)
            continue;
        if (snprintf(folder, sizeof folder, "%.*s%.*s", length, path, rest, folders + sizeof ORIGIN - 1) < PATH_MAX &&
            carries(folder))
            return 1;
    }
    return 0;
}

/* The octets of a file that its program headers load at an address, up to its end; NULL if there are none. */
static const char *at(const char *file, size_t size, ElfW(Addr) address, size_t *left)
{
    const ElfW(Ehdr) *head = (const void *)file;
    const ElfW(Phdr) *parts = (const void *)(file + head->e_phoff);

    for (int index = 0; index < head->e_phnum; index++) {
        ElfW(Off) offset = parts[index].p_offset + (address - parts[index].p_vaddr);

        if (parts[index].p_type == PT_LOAD && address - parts[index].p_vaddr < parts[index].p_filesz && offset < size) {
            *left = size - offset;
            return file + offset;
        }
    }
    return NULL;
}

/* The same of a library's file, of this machine's words: its path is in its dynamic section (ELF, DT_RUNPATH). */
static int leads_file(const char *path, const char *file, size_t size)
{
    const ElfW(Ehdr) *head = (const void *)file;
    const ElfW(Dyn) *entries = NULL;
    const char *names = NULL;
    ElfW(Addr) table = 0;
    size_t count = 0, left = 0;
    int found = 0;

    if (size < sizeof *head || memcmp(file, ELFMAG, SELFMAG) != 0 ||
        file[EI_CLASS] != (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32) || head->e_phoff > size ||
        head->e_phnum > (size - head->e_phoff) / sizeof(ElfW(Phdr)))
        return 0;
    for (int index = 0; index < head->e_phnum; index++) {
        const ElfW(Phdr) *part = (const ElfW(Phdr) *)(file + head->e_phoff) + index;

        if (part->p_type == PT_DYNAMIC && part->p_offset < size && part->p_filesz <= size - part->p_offset) {
            entries = (const void *)(file + part->p_offset);
            count = part->p_filesz / sizeof *entries;
        }
    }
    for (size_t index = 0; index < count; index++)
        if (entries[index].d_tag == DT_STRTAB)
            table = entries[index].d_un.d_ptr;
    if (table != 0)
        names = at(file, size, table, &left);
    for (size_t index = 0; index < count && names != NULL && !found; index++) {
        size_t place = entries[index].d_un.d_val;

        if ((entries[index].d_tag == DT_RUNPATH || entries[index].d_tag == DT_RPATH) && place < left &&
            memchr(names + place, '\0', left - place) != NULL)
            found = leads(path, names + place);
    }
    return found;
}

/* Not a part of dlopen below, which has nothing on its stack when it goes on. */
static __attribute__((noinline)) void serve(const char *path, opener *real)
{
    static int served;
    int before = errno, file;
    struct stat status;
    char own[PATH_MAX];
    void *mapped = MAP_FAILED;
    Dl_info beside;

    if (served || path == NULL || strchr(path, '/') == NULL || (file = open(path, O_RDONLY | O_CLOEXEC)) < 0) {
        errno = before;
        return;
    }
    if (fstat(file, &status) == 0 && S_ISREG(status.st_mode))
        mapped = mmap(NULL, status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (mapped != MAP_FAILED) {
        served = leads_file(path, mapped, status.st_size);
        munmap(mapped, status.st_size);
    }
    for (unsigned index = 0; served && index < sizeof OWN / sizeof *OWN; index++)
        if (dladdr(OWN, &beside) && strrchr(beside.dli_fname, '/') != NULL &&
            snprintf(own, sizeof own, "%.*s/%s", (int)(strrchr(beside.dli_fname, '/') - beside.dli_fname),
                     beside.dli_fname, OWN[index]) < PATH_MAX &&
            real(own, RTLD_NOW | RTLD_GLOBAL) == NULL)
            dlerror();
    errno = before;
}

/* The loader takes the caller's own path for a name without a folder: this jumps to it, and does not call it. */
void *dlopen(const char *path, int mode)
{
    static opener *real;

    if (real == NULL)
        real = (opener *)dlsym(RTLD_NEXT, "dlopen");
    serve(path, real);
    return real(path, mode);
}
