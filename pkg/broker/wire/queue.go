package wire

// QueueDeclare comes from clients. An empty Queue asks the server for a name.
type QueueDeclare struct {
	Queue                                           string
	Passive, Durable, Exclusive, AutoDelete, NoWait bool
	Arguments                                       Table
}

func (*QueueDeclare) Class() uint16 { return 50 }
func (*QueueDeclare) ID() uint16    { return 10 }
func (*QueueDeclare) Name() string  { return "queue.declare" }

func (m *QueueDeclare) walk(c codec) codec {
	c.reserved16()
	c.short(&m.Queue)
	c.bits(&m.Passive, &m.Durable, &m.Exclusive, &m.AutoDelete, &m.NoWait)
	c.table(&m.Arguments)
	return c
}

// QueueDeclareOK goes to clients.
type QueueDeclareOK struct {
	Queue                       string
	MessageCount, ConsumerCount uint32
}

func (*QueueDeclareOK) Class() uint16 { return 50 }
func (*QueueDeclareOK) ID() uint16    { return 11 }
func (*QueueDeclareOK) Name() string  { return "queue.declare-ok" }

func (m *QueueDeclareOK) walk(c codec) codec {
	c.short(&m.Queue)
	c.uint32(&m.MessageCount)
	c.uint32(&m.ConsumerCount)
	return c
}

// QueueBind comes from clients.
type QueueBind struct {
	Queue, Exchange, RoutingKey string
	NoWait                      bool
	Arguments                   Table
}

func (*QueueBind) Class() uint16 { return 50 }
func (*QueueBind) ID() uint16    { return 20 }
func (*QueueBind) Name() string  { return "queue.bind" }

func (m *QueueBind) walk(c codec) codec {
	c.reserved16()
	c.short(&m.Queue)
	c.short(&m.Exchange)
	c.short(&m.RoutingKey)
	c.bits(&m.NoWait)
	c.table(&m.Arguments)
	return c
}

// QueueBindOK goes to clients.
type QueueBindOK struct{}

func (*QueueBindOK) Class() uint16      { return 50 }
func (*QueueBindOK) ID() uint16         { return 21 }
func (*QueueBindOK) Name() string       { return "queue.bind-ok" }
func (*QueueBindOK) walk(c codec) codec { return c }

// QueueUnbind comes from clients.
type QueueUnbind struct {
	Queue, Exchange, RoutingKey string
	Arguments                   Table
}

func (*QueueUnbind) Class() uint16 { return 50 }
func (*QueueUnbind) ID() uint16    { return 50 }
func (*QueueUnbind) Name() string  { return "queue.unbind" }

func (m *QueueUnbind) walk(c codec) codec {
	c.reserved16()
	c.short(&m.Queue)
	c.short(&m.Exchange)
	c.short(&m.RoutingKey)
	c.table(&m.Arguments)
	return c
}

// QueueUnbindOK goes to clients.
type QueueUnbindOK struct{}

func (*QueueUnbindOK) Class() uint16      { return 50 }
func (*QueueUnbindOK) ID() uint16         { return 51 }
func (*QueueUnbindOK) Name() string       { return "queue.unbind-ok" }
func (*QueueUnbindOK) walk(c codec) codec { return c }

// QueuePurge comes from clients.
type QueuePurge struct {
	Queue  string
	NoWait bool
}

func (*QueuePurge) Class() uint16 { return 50 }
func (*QueuePurge) ID() uint16    { return 30 }
func (*QueuePurge) Name() string  { return "queue.purge" }

func (m *QueuePurge) walk(c codec) codec {
	c.reserved16()
	c.short(&m.Queue)
	c.bits(&m.NoWait)
	return c
}

// QueuePurgeOK goes to clients.
type QueuePurgeOK struct {
	MessageCount uint32
}

func (*QueuePurgeOK) Class() uint16 { return 50 }
func (*QueuePurgeOK) ID() uint16    { return 31 }
func (*QueuePurgeOK) Name() string  { return "queue.purge-ok" }

func (m *QueuePurgeOK) walk(c codec) codec {
	c.uint32(&m.MessageCount)
	return c
}

// QueueDelete comes from clients.
type QueueDelete struct {
	Queue                     string
	IfUnused, IfEmpty, NoWait bool
}

func (*QueueDelete) Class() uint16 { return 50 }
func (*QueueDelete) ID() uint16    { return 40 }
func (*QueueDelete) Name() string  { return "queue.delete" }

func (m *QueueDelete) walk(c codec) codec {
	c.reserved16()
	c.short(&m.Queue)
	c.bits(&m.IfUnused, &m.IfEmpty, &m.NoWait)
	return c
}

// QueueDeleteOK goes to clients.
type QueueDeleteOK struct {
	MessageCount uint32
}

func (*QueueDeleteOK) Class() uint16 { return 50 }
func (*QueueDeleteOK) ID() uint16    { return 41 }
func (*QueueDeleteOK) Name() string  { return "queue.delete-ok" }

func (m *QueueDeleteOK) walk(c codec) codec {
	c.uint32(&m.MessageCount)
	return c
}
