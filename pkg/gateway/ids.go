package gateway

import (
	"crypto/subtle"
	"fmt"

	"github.com/google/uuid"

	"fleet/pkg/envelope"
	"fleet/pkg/identity"
)

// mintID makes the id of a message so that it proves later whom the message was
// addressed to: a UUIDv7 whose last 7 random bytes are a mark of this host over
// the rest, sender and recipient. An answer can then be judged without the send's
// row, so that row need not be on disk before the message is published (R19).
func (g *Gateway) mintID(from, to identity.GID, host identity.Host) envelope.ID {
	u := uuid.Must(uuid.NewV7())
	mark := g.mark(u, from, to, host)
	copy(u[9:], mark[:7])
	return envelope.ID(u.String())
}

// minted says whether mintID made id for this sender and recipient.
func (g *Gateway) minted(id envelope.ID, from, to identity.GID, host identity.Host) bool {
	u, err := uuid.Parse(string(id))
	if err != nil {
		return false
	}
	mark := g.mark(u, from, to, host)
	return subtle.ConstantTimeCompare(u[9:], mark[:7]) == 1
}

func (g *Gateway) mark(u uuid.UUID, from, to identity.GID, host identity.Host) [8]byte {
	return g.tokens.Mark(fmt.Sprintf("message %x %s %s %s", u[:9], from, to, host))
}
