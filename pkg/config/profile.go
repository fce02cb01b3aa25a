package config

import (
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"fleet/pkg/fault"
)

// Environ is what the agent gets besides, as sorted KEY=VALUE: Env, and the
// lines of EnvFile, which win. The file is read at each call, so that a secret
// may change under a running gateway. It fails with fault.Config where the file
// is missing, malformed, or readable by others; no message holds a value.
func (p Profile) Environ() ([]string, error) {
	env := make(map[string]string, len(p.Env))
	for name, v := range p.Env {
		env[name] = v
	}
	if p.EnvFile != "" {
		if err := readEnvFile(p.EnvFile, env); err != nil {
			return nil, err
		}
	}
	list := make([]string, 0, len(env))
	for name, v := range env {
		list = append(list, name+"="+v)
	}
	slices.Sort(list)
	return list, nil
}

// readEnvFile adds the KEY=VALUE lines of path to env. Blank lines and lines
// that start with # are skipped; a value is everything after the first =, as it
// stands.
func readEnvFile(path string, env map[string]string) error {
	f, err := os.Open(path)
	if err != nil {
		return fault.New(fault.Config, "can't read env_file %s: %s", path, reason(err))
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return fault.New(fault.Config, "env_file %s is not a file", path)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fault.New(fault.Config, "env_file %s has mode %04o, so others can read it", path, mode).WithHint("chmod 600 %s", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, mostBytes+1))
	if err != nil || len(text) > mostBytes {
		return fault.New(fault.Config, "can't read env_file %s, or it has more than %s", path, showSize(mostBytes))
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimRight(line, "\r\n")
		if t := strings.TrimSpace(line); t == "" || t[0] == '#' {
			continue
		}
		name, v, ok := strings.Cut(line, "=")
		if !ok || !variableName.MatchString(name) || strings.ContainsRune(v, 0) {
			return fault.New(fault.Config, "%s is not of the form KEY=VALUE", path+":"+strconv.Itoa(n)).
				WithHint("no quotes, no export; the value is everything after the first =")
		}
		env[name] = v
	}
	return nil
}
