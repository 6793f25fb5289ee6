/* A program that loads a plugin by its name alone, and, with PLUGIN, the plugin. */
#include <dlfcn.h>
#include <stdio.h>

#ifdef PLUGIN
const char *plugin(void) { return "plugin loaded"; }
#else
int main(void) {
    void *library = dlopen("libplugin.so", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    puts(((const char *(*)(void))dlsym(library, "plugin"))());
    return dlclose(library);
}
#endif
