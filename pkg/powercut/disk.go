package powercut

import (
	"bytes"
	"maps"
	"math/rand/v2"
	"slices"
)

// Disk is the directory as the events show it. The zero value is an empty one.
type Disk struct {
	names   map[string]*file // as the program sees them
	certain map[string]*file // as they are on the disk
	changes []Event          // of names, since the last SyncedNames
	subject map[int]*file    // what a change is about, by its line
}

type file struct {
	synced  []byte  // certain
	pending []Event // not brought to the disk yet
}

// Load begins with files that are on the disk already.
func (d *Disk) Load(images map[string][]byte) {
	d.prepare()
	for name, image := range images {
		f := &file{synced: bytes.Clone(image)}
		d.names[name], d.certain[name] = f, f
	}
}

func (d *Disk) prepare() {
	if d.names == nil {
		d.names, d.certain, d.subject = map[string]*file{}, map[string]*file{}, map[int]*file{}
	}
}

// Step follows one event.
func (d *Disk) Step(e Event) {
	d.prepare()
	f := d.names[e.File]
	if f == nil && e.What != Said && e.What != SyncedNames {
		f = new(file)
		d.names[e.File] = f
	}
	switch e.What {
	case Wrote, Truncated, Allocated:
		f.pending = append(f.pending, e)
	case Synced:
		// Only what was written before the fsync began is certain.
		done := until(f.pending, e.began)
		for _, p := range f.pending[:done] {
			f.synced = p.onto(f.synced)
		}
		f.pending = slices.Clone(f.pending[done:])
	case SyncFailed:
		// The system may take what it could not write for written, so that no later fsync
		// tries it again; or not. Every other time it does.
		if e.at%2 == 0 {
			f.pending = slices.Clone(f.pending[until(f.pending, e.began):])
		}
	case Created, Linked, Renamed, Removed:
		d.subject[e.at] = f
		d.changes = append(d.changes, e)
		d.rename(d.names, e)
	case SyncedNames:
		done := until(d.changes, e.began)
		for _, c := range d.changes[:done] {
			d.rename(d.certain, c)
			delete(d.subject, c.at)
		}
		d.changes = slices.Clone(d.changes[done:])
	}
}

// until is how many of the events came before a line of the log.
func until(events []Event, line int) int {
	if i := slices.IndexFunc(events, func(e Event) bool { return e.at > line }); i >= 0 {
		return i
	}
	return len(events)
}

// rename applies a change of names.
func (d *Disk) rename(names map[string]*file, e Event) {
	f := d.subject[e.at]
	switch e.What {
	case Created:
		names[e.File] = f
	case Linked:
		names[e.To] = f
	case Renamed:
		delete(names, e.File)
		names[e.To] = f
	case Removed:
		delete(names, e.File)
	}
}

// Cut returns the files, by name, as a power cut may leave them now.
func (d *Disk) Cut(random *rand.Rand) map[string][]byte {
	names := maps.Clone(d.certain)
	keep := random.Float64()
	for _, c := range d.changes {
		if random.Float64() < keep {
			d.rename(names, c)
		}
	}
	images := make(map[string][]byte, len(names))
	for _, name := range slices.Sorted(maps.Keys(names)) { // in one order, so that a seed says all
		images[name] = names[name].cut(random)
	}
	return images
}

// cut is the file as a power cut may leave it.
func (f *file) cut(random *rand.Rand) []byte {
	const sector = 512
	b := bytes.Clone(f.synced)
	keep := random.Float64()
	for _, i := range random.Perm(len(f.pending)) {
		p := f.pending[i]
		switch {
		case random.Float64() > keep:
		case p.What != Wrote || random.IntN(3) > 0:
			b = p.onto(b)
		default:
			for from := 0; from < len(p.Data); from += sector {
				if random.IntN(2) == 0 {
					piece := p.Data[from:min(from+sector, len(p.Data))]
					b = Event{What: Wrote, Off: p.Off + int64(from), Data: piece}.onto(b)
				}
			}
		}
	}
	return b
}

// Moments chooses n moments spread over the events, as their indices. Half of
// them are just before and after an fsync, the telling ones.
func Moments(random *rand.Rand, events []Event, n int) map[int]bool {
	chosen := make(map[int]bool)
	for len(chosen) < min(n, len(events)/2) {
		i := random.IntN(len(events))
		if random.IntN(2) == 0 {
			for i < len(events)-1 && events[i].What != Synced {
				i++
			}
			i = max(0, i-random.IntN(2))
		}
		chosen[i] = true
	}
	return chosen
}
