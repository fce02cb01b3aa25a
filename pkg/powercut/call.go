package powercut

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// call is one call in strace's log. In args are the arguments as far as they are
// known: all of them, and the result, when it has ended.
type call struct {
	name, args string
	began      int // line of the log
}

var (
	resultForm = regexp.MustCompile(`\) += (-?\d+)[^)]*(\(.*\))?$`)
	handleForm = regexp.MustCompile(`^(\d+|AT_FDCWD)<([^>]*)>`)
)

// handle is the first argument, a file descriptor, and the path of the file
// behind it.
func (c call) handle() (fd, path, rest string) {
	m := handleForm.FindStringSubmatch(c.args)
	if m == nil {
		return "", "", c.args
	}
	return m[1], plain(m[2]), strings.TrimPrefix(c.args[len(m[0]):], ", ")
}

// in is the name of a file that lies in dir, "" if it lies elsewhere.
func in(dir, path string) string {
	if filepath.Dir(path) == dir {
		return filepath.Base(path)
	}
	return ""
}

// atBegin is the event of a call that counts from its beginning.
func (c call) atBegin(dir string) (e Event, ok bool, err error) {
	fd, path, rest := c.handle()
	e.File = in(dir, path)
	switch {
	case c.name == "write" && fd == "1":
		return Event{What: Said, Line: strings.TrimSpace(plain(quoted(rest)))}, true, nil
	case e.File == "":
		return e, false, nil
	}
	switch c.name {
	case "pwrite64":
		text := quoted(rest)
		var size int
		if _, err := fmt.Sscanf(rest[len(text)+2:], ", %d, %d", &size, &e.Off); err != nil {
			return e, false, fmt.Errorf("pwrite64: %w", err)
		}
		e.What, e.Data = Wrote, []byte(plain(text))
		if len(e.Data) != size {
			return e, false, fmt.Errorf("pwrite64 of %d bytes shows %d", size, len(e.Data))
		}
		return e, true, nil
	case "ftruncate":
		e.What = Truncated
		_, err := fmt.Sscan(rest[:strings.IndexAny(rest+")", ") ")], &e.Off)
		return e, true, err
	case "fallocate":
		var mode, off, size int64
		if _, err := fmt.Sscanf(rest, "%d, %d, %d", &mode, &off, &size); err != nil || mode != 0 {
			return e, false, fmt.Errorf("fallocate is not understood: %w", err)
		}
		e.What, e.Off = Allocated, off+size
		return e, true, nil
	case "fsync", "fdatasync", "openat", "linkat", "unlinkat", "renameat", "renameat2":
		return e, false, nil
	}
	return e, false, fmt.Errorf("%s of %s is not understood", c.name, e.File)
}

// atEnd is the event of a call that counts from its end.
func (c call) atEnd(dir string) (e Event, ok bool, err error) {
	m := resultForm.FindStringSubmatch(c.args)
	if m == nil {
		return e, false, fmt.Errorf("%s has no result", c.name)
	}
	good := !strings.HasPrefix(m[1], "-")
	_, path, rest := c.handle()
	e.File = in(dir, path)
	switch c.name {
	case "fsync", "fdatasync":
		switch {
		case path == dir && good:
			return Event{What: SyncedNames}, true, nil
		case e.File != "" && good:
			e.What = Synced
			return e, true, nil
		case e.File != "":
			e.What = SyncFailed
			return e, true, nil
		}
	case "pwrite64", "ftruncate", "fallocate":
		if e.File != "" && !good {
			return e, false, fmt.Errorf("%s of %s has failed", c.name, e.File)
		}
	case "openat":
		e.File = in(dir, plain(quoted(rest)))
		if e.File == "" || !good || !strings.Contains(rest, "O_CREAT") {
			return e, false, nil
		}
		if strings.Contains(rest, "O_TRUNC") {
			return e, false, fmt.Errorf("that %s is emptied when it is opened is not understood", e.File)
		}
		e.What = Created
		return e, true, nil
	case "link", "linkat", "rename", "renameat", "renameat2", "unlink", "unlinkat":
		return c.names(dir, good)
	}
	return e, false, nil
}

// names is the event of a call that changes names.
func (c call) names(dir string, good bool) (e Event, ok bool, err error) {
	var paths []string
	for i, part := range strings.Split(c.args, `"`) {
		if i%2 == 1 {
			paths = append(paths, plain(part))
		}
	}
	want := 2
	e.What = map[byte]Kind{'l': Linked, 'r': Renamed, 'u': Removed}[c.name[0]]
	if e.What == Removed {
		want = 1
	}
	if len(paths) != want {
		return e, false, fmt.Errorf("%s with %d paths", c.name, len(paths))
	}
	e.File, e.To = in(dir, paths[0]), in(dir, paths[want-1])
	if !good || e.File == "" && e.To == "" {
		return e, false, nil
	}
	if e.File == "" || e.To == "" {
		return e, false, fmt.Errorf("%s between directories is not understood", c.name)
	}
	return e, true, nil
}

// quoted is what stands between the first two quotes of s; with -xx no quote
// stands inside.
func quoted(s string) string {
	_, s, _ = strings.Cut(s, `"`)
	s, _, _ = strings.Cut(s, `"`)
	return s
}

// plain decodes strace's \xNN.
func plain(s string) string {
	b := make([]byte, 0, len(s)/4)
	for i := 0; i < len(s); {
		if i+4 <= len(s) && s[i] == '\\' && s[i+1] == 'x' {
			if n, err := strconv.ParseUint(s[i+2:i+4], 16, 8); err == nil {
				b = append(b, byte(n))
				i += 4
				continue
			}
		}
		b = append(b, s[i])
		i++
	}
	return string(b)
}
