package broker

import "slices"

// Connection is a client's connection, for an operator.
type Connection struct {
	ID       string // "REMOTE -> LOCAL"
	Name     string // what the client calls itself
	User     string
	Channels int
}

// ask has do run by the core; false means that the broker has ended.
func (s *Server) ask(do func(c *core)) bool {
	done := make(chan struct{})
	select {
	case s.core.asks <- func() { do(s.core); close(done) }:
	case <-s.done:
		return false
	}
	select {
	case <-done:
		return true
	case <-s.done:
		return false
	}
}

// Connections lists who is connected, by id.
func (s *Server) Connections() []Connection {
	var list []Connection
	ok := s.ask(func(c *core) {
		for cn := range c.conns {
			list = append(list, Connection{ID: cn.id(), Name: cn.who.name, User: cn.who.user, Channels: len(cn.channels)})
		}
	})
	if !ok {
		return nil
	}
	slices.SortFunc(list, func(a, b Connection) int {
		switch {
		case a.ID < b.ID:
			return -1
		case a.ID > b.ID:
			return 1
		}
		return 0
	})
	return list
}

// Disconnect closes a connection with 320 CONNECTION_FORCED and the operator's
// reason; false means that there is none with this id.
func (s *Server) Disconnect(id, reason string) bool {
	found := false
	s.ask(func(c *core) {
		for cn := range c.conns {
			if cn.id() == id && !cn.closing {
				c.closeConn(cn, forbid(320, "%s", reason), 0, 0)
				found = true
			}
		}
	})
	return found
}

func (c *conn) id() string { return c.raw.RemoteAddr().String() + " -> " + c.raw.LocalAddr().String() }
