/*
 * A program that is not linked with libibverbs itself, only with a library of early.c's, which is.
 */
int behind(void);

int main(void)
{
    return behind();
}
