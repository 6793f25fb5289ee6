/* Which calls of the C library find the device's files? Each line: the call, the path, and found or the error. Fails if a call does not find what another finds, or if a
 * result is not a path by which programs know the file. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define B "/sys/class/infiniband"
#define D "/sys/devices/virtual/infiniband"

static int bad;
static void say(const char *call, const char *path, int ok)
{
	printf("%-28s %-60s %s\n", call, path, ok ? "found" : strerror(errno));
	if (!ok)
		bad = 1;
	errno = 0;
}

static int visited, misnamed;
static int visit(const char *path, const struct stat *s, int kind, struct FTW *at)
{
	(void)s, (void)kind;
	visited++;
	misnamed |= strncmp(path, B, strlen(B)) != 0 || path[at->base - 1] != '/' || strchr(path + at->base, '/');
	return 0;
}
static int visit64(const char *path, const struct stat64 *s, int kind, struct FTW *at)
{
	return visit(path, (const struct stat *)s, kind, at);
}
static int visit_short(const char *path, const struct stat *s, int kind)
{
	(void)s, (void)kind;
	visited++;
	misnamed |= strncmp(path, B, strlen(B)) != 0;
	return 0;
}

static int closes(int fd) { return fd >= 0 && close(fd) == 0; }
static int fcloses(FILE *file) { return file && fclose(file) == 0; }
static int lists(DIR *dir) { return dir && readdir(dir) && closedir(dir) == 0; }
static int is(const char *found, const char *expected)
{
	if (found && strcmp(found, expected) != 0)
		printf("%s instead of %s\n", found, expected);
	return found && strcmp(found, expected) == 0;
}
static int links(const char *text, ssize_t len, const char *expected)
{
	return len == (ssize_t)strlen(expected) && memcmp(text, expected, len) == 0;
}

int main(void)
{
	const char *f = B "/mitra0/ports/1/gid_attrs/types/0", *d = B "/mitra0/device/net", *dev = "/dev/infiniband/uverbs0", *m = B "/mitra0";
	const char *all = B "/mitra0/device/net/*", *link = "../../devices/virtual/infiniband/mitra0";
	struct stat s;
	struct stat64 s64;
	struct statx sx;
	char buf[PATH_MAX];
	struct dirent **l;
	struct dirent64 **l64;
	glob_t g;
	glob64_t g64;

	say("fopen", f, fcloses(fopen(f, "r")));
	say("fopen64", f, fcloses(fopen64(f, "r")));
	say("open", f, closes(open(f, O_RDONLY)));
	say("open64", f, closes(open64(f, O_RDONLY)));
	say("openat(AT_FDCWD)", f, closes(openat(AT_FDCWD, f, O_RDONLY)));
	say("openat64(AT_FDCWD)", f, closes(openat64(AT_FDCWD, f, O_RDONLY)));
	say("freopen", f, freopen(f, "r", stdin) != 0);
	say("freopen64", f, freopen64(f, "r", stdin) != 0);
	say("stat", f, !stat(f, &s) && S_ISREG(s.st_mode));
	say("stat64", f, !stat64(f, &s64));
	say("lstat", m, !lstat(m, &s) && S_ISLNK(s.st_mode));
	say("lstat64", m, !lstat64(m, &s64) && S_ISLNK(s64.st_mode));
	say("fstatat(AT_FDCWD)", f, !fstatat(AT_FDCWD, f, &s, 0));
	say("fstatat64(AT_FDCWD)", f, !fstatat64(AT_FDCWD, f, &s64, 0));
	say("statx(AT_FDCWD)", f, !statx(AT_FDCWD, f, 0, STATX_TYPE, &sx));
	say("access", f, !access(f, R_OK));
	say("faccessat(AT_FDCWD)", f, !faccessat(AT_FDCWD, f, R_OK, 0));
	say("euidaccess", f, !euidaccess(f, R_OK));
	say("eaccess", f, !eaccess(f, R_OK));
	say("realpath", f, is(realpath(f, buf), D "/mitra0/ports/1/gid_attrs/types/0"));
	say("canonicalize_file_name", d, is(canonicalize_file_name(d), D "/mitra0/device/net"));
	say("opendir", d, lists(opendir(d)));
	say("open(O_DIRECTORY)", d, closes(open(d, O_RDONLY | O_DIRECTORY)));
	say("scandir", d, scandir(d, &l, 0, alphasort) == 3);
	say("scandir64", d, scandir64(d, &l64, 0, alphasort64) == 3);
	say("scandirat(AT_FDCWD)", d, scandirat(AT_FDCWD, d, &l, 0, alphasort) == 3);
	say("glob", all, !glob(all, 0, 0, &g) && g.gl_pathc == 1 && strncmp(g.gl_pathv[0], d, strlen(d)) == 0);
	say("glob64", all, !glob64(all, 0, 0, &g64) && g64.gl_pathc == 1);
	say("nftw", d, !nftw(d, visit, 4, FTW_PHYS) && visited == 2 && !misnamed);
	say("nftw64", d, !nftw64(d, visit64, 4, FTW_PHYS) && visited == 4 && !misnamed);
	say("ftw", d, !ftw(d, visit_short, 4) && visited > 5 && !misnamed);
	{
		char *a[] = { (char *)d, 0 };
		FTS *t = fts_open(a, FTS_PHYSICAL, 0);
		FTSENT *e;
		int k = 0;
		while (t && (e = fts_read(t)))
			if (e->fts_info != FTS_NS && e->fts_info != FTS_ERR)
				k++;
		say("fts (find, grep -r)", d, k > 1);
	}
	say("readlink", m, links(buf, readlink(m, buf, sizeof buf), link));
	say("readlinkat(AT_FDCWD)", m, links(buf, readlinkat(AT_FDCWD, m, buf, sizeof buf), link));
	say("realpath (as Mooncake)", B "/mitra0/../..", is(realpath(B "/mitra0/../..", buf), "/sys/devices/virtual"));
	say("stat (device)", dev, !stat(dev, &s) && S_ISCHR(s.st_mode));
	say("open (device, O_RDWR)", dev, closes(open(dev, O_RDWR)));
	say("realpath (device)", dev, is(realpath(dev, buf), dev));

	const char *more[] = { B, B "/mitra0", B "/mitra0/ports", B "/mitra0/ports/1", B "/mitra0/ports/1/gid_attrs", B "/mitra0/ports/1/gid_attrs/ndevs",
		B "/mitra0/ports/1/gids", "/dev/infiniband", "/sys/class/infiniband_verbs", "/sys/class/infiniband_verbs/uverbs0",
		B "/mitra0/device/net/lo", B "/mitra0/node_type", B "/mitra0/node_guid", B "/mitra0/sys_image_guid", B "/mitra0/node_desc",
		B "/mitra0/fw_ver", B "/mitra0/hca_type", B "/mitra0/ports/1/state", B "/mitra0/ports/1/phys_state", B "/mitra0/ports/1/link_layer",
		B "/mitra0/ports/1/rate", B "/mitra0/ports/1/lid", B "/mitra0/ports/1/sm_lid", B "/mitra0/ports/1/lid_mask_count",
		B "/mitra0/ports/1/cap_mask", B "/mitra0/ports/1/pkeys/0", B "/mitra0/ports/1/gids/0", B "/mitra0/ports/1/gids/1",
		B "/mitra0/ports/1/hw_counters", "/sys/class/infiniband_verbs/uverbs0/ibdev", "/sys/class/infiniband_verbs/uverbs0/abi_version",
		"/sys/class/infiniband_verbs/abi_version" };
	for (unsigned i = 0; i < sizeof more / sizeof *more; i++)
		say("stat (on soft-RoCE present)", more[i], !stat(more[i], &s));

	say("chdir", d, !chdir(d));
	say("open (relative)", "../../node_type", closes(open("../../node_type", O_RDONLY)));
	say("getcwd", d, is(getcwd(buf, sizeof buf), D "/mitra0/device/net"));
	say("get_current_dir_name", d, is(get_current_dir_name(), D "/mitra0/device/net"));
	say("realpath (relative)", "../..", is(realpath("../..", buf), D "/mitra0"));
	return bad;
}
