package wire

// ExchangeDeclare comes from clients.
type ExchangeDeclare struct {
	Exchange, Type                                 string
	Passive, Durable, AutoDelete, Internal, NoWait bool
	Arguments                                      Table
}

func (*ExchangeDeclare) Class() uint16 { return 40 }
func (*ExchangeDeclare) ID() uint16    { return 10 }
func (*ExchangeDeclare) Name() string  { return "exchange.declare" }

func (m *ExchangeDeclare) walk(c codec) codec {
	c.reserved16()
	c.short(&m.Exchange)
	c.short(&m.Type)
	c.bits(&m.Passive, &m.Durable, &m.AutoDelete, &m.Internal, &m.NoWait)
	c.table(&m.Arguments)
	return c
}

// ExchangeDeclareOK goes to clients.
type ExchangeDeclareOK struct{}

func (*ExchangeDeclareOK) Class() uint16      { return 40 }
func (*ExchangeDeclareOK) ID() uint16         { return 11 }
func (*ExchangeDeclareOK) Name() string       { return "exchange.declare-ok" }
func (*ExchangeDeclareOK) walk(c codec) codec { return c }

// ExchangeDelete comes from clients.
type ExchangeDelete struct {
	Exchange         string
	IfUnused, NoWait bool
}

func (*ExchangeDelete) Class() uint16 { return 40 }
func (*ExchangeDelete) ID() uint16    { return 20 }
func (*ExchangeDelete) Name() string  { return "exchange.delete" }

func (m *ExchangeDelete) walk(c codec) codec {
	c.reserved16()
	c.short(&m.Exchange)
	c.bits(&m.IfUnused, &m.NoWait)
	return c
}

// ExchangeDeleteOK goes to clients.
type ExchangeDeleteOK struct{}

func (*ExchangeDeleteOK) Class() uint16      { return 40 }
func (*ExchangeDeleteOK) ID() uint16         { return 21 }
func (*ExchangeDeleteOK) Name() string       { return "exchange.delete-ok" }
func (*ExchangeDeleteOK) walk(c codec) codec { return c }

// ExchangeBind comes from clients; messages go from Source to Destination.
type ExchangeBind struct {
	Destination, Source, RoutingKey string
	NoWait                          bool
	Arguments                       Table
}

func (*ExchangeBind) Class() uint16 { return 40 }
func (*ExchangeBind) ID() uint16    { return 30 }
func (*ExchangeBind) Name() string  { return "exchange.bind" }

func (m *ExchangeBind) walk(c codec) codec {
	c.reserved16()
	c.short(&m.Destination)
	c.short(&m.Source)
	c.short(&m.RoutingKey)
	c.bits(&m.NoWait)
	c.table(&m.Arguments)
	return c
}

// ExchangeBindOK goes to clients.
type ExchangeBindOK struct{}

func (*ExchangeBindOK) Class() uint16      { return 40 }
func (*ExchangeBindOK) ID() uint16         { return 31 }
func (*ExchangeBindOK) Name() string       { return "exchange.bind-ok" }
func (*ExchangeBindOK) walk(c codec) codec { return c }

// ExchangeUnbind comes from clients.
type ExchangeUnbind struct {
	Destination, Source, RoutingKey string
	NoWait                          bool
	Arguments                       Table
}

func (*ExchangeUnbind) Class() uint16 { return 40 }
func (*ExchangeUnbind) ID() uint16    { return 40 }
func (*ExchangeUnbind) Name() string  { return "exchange.unbind" }

func (m *ExchangeUnbind) walk(c codec) codec {
	c.reserved16()
	c.short(&m.Destination)
	c.short(&m.Source)
	c.short(&m.RoutingKey)
	c.bits(&m.NoWait)
	c.table(&m.Arguments)
	return c
}

// ExchangeUnbindOK goes to clients.
type ExchangeUnbindOK struct{}

func (*ExchangeUnbindOK) Class() uint16      { return 40 }
func (*ExchangeUnbindOK) ID() uint16         { return 51 }
func (*ExchangeUnbindOK) Name() string       { return "exchange.unbind-ok" }
func (*ExchangeUnbindOK) walk(c codec) codec { return c }
