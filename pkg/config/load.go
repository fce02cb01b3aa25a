package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"fleet/pkg/fault"
	"fleet/pkg/identity"
)

// Override is what the command line says, which beats everything else.
type Override struct {
	Dir string // --dir; empty: FLEET_DIR, else .fleet under the passwd home
}

// Load reads the configuration of the host that o and the environment name. The
// file may be missing; the directory may not. Everything that is wrong with it
// is one fault.Config, whose first line names the place as file:line or as the
// variable.
func Load(o Override) (Config, error) {
	dir := o.Dir
	if dir == "" {
		found, err := DefaultDir()
		if err != nil {
			return Config{}, err
		}
		dir = found
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Config{}, fmt.Errorf("make %s absolute: %w", dir, err)
	}
	return load(dir, os.Environ())
}

// load is Load with everything from outside given.
func load(dir string, environ []string) (Config, error) {
	if err := checkDir(dir); err != nil {
		return Config{}, err
	}
	text, mode, err := readFile(filepath.Join(dir, fileName))
	if err != nil {
		return Config{}, err
	}
	r := newReader(dir)
	r.file(text)
	inFile := r.draft.Broker.holdsPassword()
	r.environment(environ)
	r.finish()
	if err := r.fault(); err != nil {
		return Config{}, err
	}
	c := r.draft.settle()
	if inFile && mode&0o077 != 0 {
		return Config{}, fault.New(fault.Config, "%s has mode %04o and holds the broker's password, so others can read it", c.File, mode).
			WithHint("chmod 600 %s", c.File)
	}
	return c, nil
}

// readFile returns the text of fleet.yaml, none where it is missing, and its
// mode.
func readFile(path string) ([]byte, fs.FileMode, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fault.New(fault.Config, "can't read %s: %s", path, reason(err))
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		return nil, 0, fault.New(fault.Config, "%s is not a file", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, mostBytes+1))
	if err != nil {
		return nil, 0, fault.New(fault.Config, "can't read %s: %s", path, reason(err))
	}
	return text, info.Mode().Perm(), nil
}

// finish checks what no key can be checked for alone.
func (r *reader) finish() {
	d := r.draft
	if d.Broker.plaintext() && !d.Broker.AllowPlaintext {
		r.complain(r.at("broker.url"), "broker.url: amqp:// sends the password and every message readably over the network",
			"use amqps://, or say broker.allow_plaintext: true")
	}
	for _, expires := range []string{"queues.worker_expires", "queues.puller_expires"} {
		long := d.Broker.Limits.WorkerExpires
		if expires == "queues.puller_expires" {
			long = d.Broker.Limits.PullerExpires
		}
		// A queue that expires drops what it holds, without a dead letter (R6).
		if long <= d.Broker.Limits.InboxTTL {
			r.complain(r.at(expires, "queues.inbox_ttl"),
				fmt.Sprintf("%s: %s is not longer than queues.inbox_ttl, %s", expires, showDuration(long), showDuration(d.Broker.Limits.InboxTTL)),
				"an inbox that goes before its messages do loses them silently")
		}
	}
	r.finishEmbedded()
	r.finishPeers()
	r.finishProfiles()
}

// finishPeers sees to it that every peer has keys, and every key one peer.
func (r *reader) finishPeers() {
	owner := map[identity.KeyID]identity.Host{}
	for _, host := range sortedNames(r.draft.peers) {
		path := "peers." + string(host)
		keys := r.draft.peers[host].Keys
		if len(keys) == 0 && !r.failed[path+".keys"] {
			r.complain(r.at(path+".keys", path), path+" has no keys", "fleet peer add HOST KEY, with the key that fleet key show prints there")
		}
		for _, key := range keys {
			if other, taken := owner[key.ID()]; taken {
				r.complain(r.at(path+".keys", path), fmt.Sprintf("%s: the key %s is also a key of %s", path, key, other),
					"every host has a key of its own; fleet key show prints it")
			}
			owner[key.ID()] = host
		}
	}
}

// finishProfiles sees to it that every profile says what has no default, and
// makes its paths absolute.
func (r *reader) finishProfiles() {
	d := r.draft
	d.Broker.CAFile = under(d.Dir, d.Broker.CAFile)
	for _, name := range sortedNames(d.profiles) {
		p, path := d.profiles[name], "profiles."+name
		p.EnvFile = under(d.Dir, p.EnvFile)
		if len(p.Command) == 0 && !r.failed[path+".command"] {
			r.complain(r.at(path, path+".evidence"), path+" has no command", "command: [PROGRAM, ARGUMENT]")
		}
		if p.Evidence == "" && !r.failed[path+".evidence"] {
			r.complain(r.at(path, path+".command"), path+" does not say which evidence of an injection counts",
				"evidence: none accepts that nothing but the terminal proves it, which is right for a plain program")
		}
	}
}

// at is the place where the first of paths that was set was set.
func (r *reader) at(paths ...string) string {
	for _, p := range paths {
		if place, ok := r.draft.sources[p]; ok {
			return place
		}
	}
	return r.draft.File
}

// under makes a path of the configuration absolute: relative ones start at dir.
func under(dir, path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// settle is the finished configuration. This host's own entry among the peers,
// there where all hosts share one file, is left out: its own key is known.
func (d *draft) settle() Config {
	c := d.Config
	c.Peers = make(map[identity.Host]Peer, len(d.peers))
	for host, p := range d.peers {
		if host != c.Host {
			c.Peers[host] = Peer{Keys: slices.Clone(p.Keys)}
		}
	}
	c.Profiles = make(map[string]Profile, len(d.profiles))
	for name, p := range d.profiles {
		c.Profiles[name] = *p
	}
	return c
}

// Setting is one key with its value and where that was set.
type Setting struct {
	Key    string `json:"key"`
	Value  string `json:"value"` // redacted
	Source string `json:"source"`
	Doc    string `json:"-"`
}

// SourceDefault is the source of what nobody set.
const SourceDefault = "default"

// Settings lists every key with its value and where that was set: file:line, a
// variable, or SourceDefault. Keys of peers and profiles are there once for
// each. Of secrets it holds a redacted form, of a profile's environment the
// names.
func (c Config) Settings() []Setting {
	d := &draft{Config: c, peers: map[identity.Host]*Peer{}, profiles: map[string]*Profile{}}
	for host, p := range c.Peers {
		d.peers[host] = &p
	}
	for name, p := range c.Profiles {
		d.profiles[name] = &p
	}
	var list []Setting
	add := func(k Key, name string) {
		source := c.sources[k.at(name)]
		if source == "" {
			source = SourceDefault
		}
		list = append(list, Setting{Key: k.at(name), Value: k.get(d, name), Source: source, Doc: k.Doc})
	}
	for _, k := range keys {
		before, _, named := k.cutVariable()
		switch {
		case !named:
			add(k, "")
		case before == variablePrefix+"PEERS_":
			for _, host := range sortedNames(c.Peers) {
				add(k, string(host))
			}
		default:
			for _, name := range sortedNames(c.Profiles) {
				add(k, name)
			}
		}
	}
	return list
}
