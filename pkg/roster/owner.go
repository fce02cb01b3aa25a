package roster

import (
	"time"

	"github.com/google/uuid"

	"fleet/pkg/identity"
)

// gidKey is a gid in 16 bytes: the owners of removed agents are many.
type gidKey = uuid.UUID

func keyOf(gid identity.GID) gidKey {
	u, err := uuid.Parse(string(gid))
	if err != nil {
		return gidKey{}
	}
	return u
}

// owner is who first announced a gid (R19).
type owner struct {
	rec    *record
	buried int64 // Unix seconds of its removal; 0: it is there
}

// tomb is a removed agent in its host's line, oldest first.
type tomb struct {
	key    gidKey
	buried int64
}

// Owner is the host that first announced gid; an operator's is the host that
// its gid derives from. It is remembered past the agent's removal.
func (r *Roster) Owner(gid identity.GID) (identity.Host, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	o, ok := r.owners[keyOf(gid)]
	if !ok {
		return "", false
	}
	return o.rec.host, true
}

// mayOwn says whether rec may announce gid, and if not, who owns it.
func (r *Roster) mayOwn(gid identity.GID, rec *record) (identity.Host, bool) {
	o, ok := r.owners[keyOf(gid)]
	if !ok || o.rec == rec || gid == rec.operator {
		return rec.host, true
	}
	return o.rec.host, false
}

// own makes rec the owner of gid. The operator's gid is taken from whoever
// announced it before the host itself was heard.
func (r *Roster) own(gid identity.GID, rec *record) {
	r.owners[keyOf(gid)] = owner{rec: rec}
}

// ownOperator gives a host that is heard for the first time its operator's gid.
// It returns the host that had claimed it, if one had.
func (r *Roster) ownOperator(rec *record, now time.Time) (thief identity.Host) {
	if o, ok := r.owners[keyOf(rec.operator)]; ok && o.rec != rec {
		thief = o.rec.host
		r.drop(o.rec, rec.operator, now)
	}
	r.own(rec.operator, rec)
	return thief
}

// bury marks gid as removed and keeps its owner. Each host has a line of its
// own, so that one which churns through ids forgets only its own.
func (r *Roster) bury(gid identity.GID, rec *record, now time.Time) {
	if gid == rec.operator {
		return
	}
	key := keyOf(gid)
	r.owners[key] = owner{rec: rec, buried: now.Unix()}
	rec.tombs = append(rec.tombs, tomb{key, now.Unix()})
	if len(rec.tombs) > r.opt.MaxRemember {
		r.forget(rec, len(rec.tombs)-r.opt.MaxRemember)
	}
}

// forget drops the n oldest tombs of rec, and the owners that still lie there.
func (r *Roster) forget(rec *record, n int) {
	for _, t := range rec.tombs[:n] {
		if o := r.owners[t.key]; o.rec == rec && o.buried == t.buried {
			delete(r.owners, t.key)
		}
	}
	rec.tombs = rec.tombs[n:]
}

// prune forgets what is older than it need be: tombs, and hosts without any.
func (r *Roster) prune(now time.Time) {
	before := now.Add(-r.opt.Remember).Unix()
	for host, rec := range r.records {
		n := 0
		for n < len(rec.tombs) && rec.tombs[n].buried < before {
			n++
		}
		r.forget(rec, n)
		if !rec.known && len(rec.tombs) == 0 && now.Sub(rec.noticed) > r.opt.RemoveAfter {
			if r.owners[keyOf(rec.operator)].rec == rec {
				delete(r.owners, keyOf(rec.operator))
			}
			delete(r.records, host)
		}
	}
}
