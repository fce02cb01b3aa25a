package config

import (
	"path/filepath"
	"reflect"
	"slices"

	"fleet/pkg/fault"
	"fleet/pkg/identity"
)

// AddPeer trusts key as host's, in the file at path. A key that is there is no
// error. Everything else in the file, comments and blank lines included, stays
// byte for byte; the file is replaced whole, with its mode, and only if the
// result loads. Edits of several processes wait for each other. It fails with
// fault.Config where the file is missing or does not load, and with
// fault.Conflict where the key is another peer's.
func AddPeer(path string, host identity.Host, key identity.PublicKey) error {
	return editPeers(path, host, func(d *draft, keys []identity.PublicKey) ([]identity.PublicKey, error) {
		for other, p := range d.peers {
			if other != host && slices.ContainsFunc(p.Keys, same(key)) {
				return nil, fault.New(fault.Conflict, "the key %s is %s's already", key, other).
					WithHint("every host has a key of its own; fleet key show prints it")
			}
		}
		if slices.ContainsFunc(keys, same(key)) {
			return keys, nil
		}
		return append(slices.Clone(keys), key), nil
	})
}

// RemovePeer trusts host no longer. It fails with fault.NotFound where it is no
// peer, else as AddPeer. Comments above the peer stay.
func RemovePeer(path string, host identity.Host) error {
	return editPeers(path, host, func(d *draft, _ []identity.PublicKey) ([]identity.PublicKey, error) {
		if d.peers[host] == nil {
			return nil, fault.New(fault.NotFound, "%s is no peer of this host", host).WithHint("fleet peer list shows them")
		}
		return nil, nil
	})
}

// RemovePeerKey ends a rotation: it removes one key of host, and with its last
// key the peer. It fails with fault.NotFound where host has no such key, else
// as AddPeer.
func RemovePeerKey(path string, host identity.Host, key identity.PublicKey) error {
	return editPeers(path, host, func(_ *draft, keys []identity.PublicKey) ([]identity.PublicKey, error) {
		if !slices.ContainsFunc(keys, same(key)) {
			return nil, fault.New(fault.NotFound, "%s has no key %s here", host, key).WithHint("fleet peer list shows the keys")
		}
		return slices.DeleteFunc(slices.Clone(keys), same(key)), nil
	})
}

func same(key identity.PublicKey) func(identity.PublicKey) bool {
	return func(k identity.PublicKey) bool { return k.ID() == key.ID() }
}

// editPeers gives host the keys that change makes of its present ones; none
// removes the peer.
func editPeers(path string, host identity.Host, change func(*draft, []identity.PublicKey) ([]identity.PublicKey, error)) error {
	return editing(filepath.Dir(path), func() error {
		text, _, err := readFile(path)
		if err != nil {
			return err
		}
		if text == nil {
			return fault.New(fault.Config, "there is no %s", path).WithHint("fleet init makes it")
		}
		before := newReader(filepath.Dir(path))
		before.draft.File = path
		before.file(text)
		if err := before.fault(); err != nil {
			return err
		}
		var keys []identity.PublicKey
		if p := before.draft.peers[host]; p != nil {
			keys = p.Keys
		}
		wanted, err := change(before.draft, keys)
		if err != nil {
			return err
		}
		if before.draft.peers[host] != nil && len(wanted) > 0 && len(wanted) == len(keys) {
			return nil
		}
		edited, ok := setPeer(text, host, wanted)
		if !ok {
			return unusual(path)
		}
		if err := verifyEdit(before, edited, host, wanted); err != nil {
			return err
		}
		if err := replace(path, edited); err != nil {
			return fault.New(fault.Config, "can't write %s: %s", path, reason(err))
		}
		return nil
	})
}

// verifyEdit sees to it that an edited text says what was wanted and otherwise
// what it said before: a layout that the editing misread must not reach the
// disk.
func verifyEdit(before *reader, edited []byte, host identity.Host, wanted []identity.PublicKey) error {
	d := before.draft
	after := newReader(d.Dir)
	after.draft.File = d.File
	after.file(edited)
	if len(after.problems) > 0 {
		return unusual(d.File)
	}
	after.finishPeers()
	if err := after.fault(); err != nil {
		return err
	}
	if len(wanted) == 0 {
		delete(d.peers, host)
	} else {
		d.peer(string(host)).Keys = wanted
	}
	was, is := d.Config, after.draft.Config
	was.sources, is.sources = nil, nil
	if !reflect.DeepEqual(was, is) || !reflect.DeepEqual(d.profiles, after.draft.profiles) || !reflect.DeepEqual(d.peers, after.draft.peers) {
		return unusual(d.File)
	}
	return nil
}

// unusual is the fault for a layout that can't be edited without risk.
func unusual(path string) error {
	return fault.New(fault.Config, "the peers in %s are laid out in a way that is not edited safely", path).
		WithHint("edit it by hand: under peers, a line HOST: {keys: [KEY]}")
}
