package broker

// Stats are a broker's numbers, at most a second old. Counters are since Open.
type Stats struct {
	Connections int
	Channels    int
	Queues      int
	Exchanges   int
	Consumers   int
	Messages    int64 // waiting or delivered and not settled
	Bytes       int64 // what they take of Limits.Bytes
	LogBytes    int64 // the log's size on disk
	Blocked     bool  // publishers are blocked

	Published    uint64
	Delivered    uint64
	Acked        uint64
	Returned     uint64 // no route
	Refused      uint64 // a queue was full
	Expired      uint64
	Overflowed   uint64 // dropped at the head of a full queue
	DeadLettered uint64
	Fsyncs       uint64
}

// counts are the core's own.
type counts struct {
	published, delivered, acked, returned, refused, expired, overflowed, deadLettered uint64
}

// Stats returns the numbers of the last second.
func (s *Server) Stats() Stats { return *s.core.stats.Load() }

func (c *core) takeStats() {
	use := c.store.Usage()
	s := &Stats{
		Connections: len(c.conns), Queues: len(c.queues), Exchanges: len(c.exchanges),
		Messages: c.messages, Bytes: c.bytes, LogBytes: use.LogBytes, Blocked: c.alarms != alarms{},
		Published: c.counts.published, Delivered: c.counts.delivered, Acked: c.counts.acked,
		Returned: c.counts.returned, Refused: c.counts.refused, Expired: c.counts.expired,
		Overflowed: c.counts.overflowed, DeadLettered: c.counts.deadLettered, Fsyncs: use.Fsyncs,
	}
	for cn := range c.conns {
		s.Channels += len(cn.channels)
	}
	for _, q := range c.queues {
		s.Consumers += len(q.consumers)
	}
	c.stats.Store(s)
}
