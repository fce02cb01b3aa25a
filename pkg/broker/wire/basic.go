package wire

// BasicQos comes from clients. PrefetchSize is in bytes; 0 is no limit.
type BasicQos struct {
	PrefetchSize  uint32
	PrefetchCount uint16
	Global        bool
}

func (*BasicQos) Class() uint16 { return 60 }
func (*BasicQos) ID() uint16    { return 10 }
func (*BasicQos) Name() string  { return "basic.qos" }

func (m *BasicQos) walk(c codec) codec {
	c.uint32(&m.PrefetchSize)
	c.uint16(&m.PrefetchCount)
	c.bits(&m.Global)
	return c
}

// BasicQosOK goes to clients.
type BasicQosOK struct{}

func (*BasicQosOK) Class() uint16      { return 60 }
func (*BasicQosOK) ID() uint16         { return 11 }
func (*BasicQosOK) Name() string       { return "basic.qos-ok" }
func (*BasicQosOK) walk(c codec) codec { return c }

// BasicConsume comes from clients. An empty ConsumerTag asks the server for one.
type BasicConsume struct {
	Queue, ConsumerTag                string
	NoLocal, NoAck, Exclusive, NoWait bool
	Arguments                         Table
}

func (*BasicConsume) Class() uint16 { return 60 }
func (*BasicConsume) ID() uint16    { return 20 }
func (*BasicConsume) Name() string  { return "basic.consume" }

func (m *BasicConsume) walk(c codec) codec {
	c.reserved16()
	c.short(&m.Queue)
	c.short(&m.ConsumerTag)
	c.bits(&m.NoLocal, &m.NoAck, &m.Exclusive, &m.NoWait)
	c.table(&m.Arguments)
	return c
}

// BasicConsumeOK goes to clients.
type BasicConsumeOK struct {
	ConsumerTag string
}

func (*BasicConsumeOK) Class() uint16 { return 60 }
func (*BasicConsumeOK) ID() uint16    { return 21 }
func (*BasicConsumeOK) Name() string  { return "basic.consume-ok" }

func (m *BasicConsumeOK) walk(c codec) codec {
	c.short(&m.ConsumerTag)
	return c
}

// BasicCancel comes from clients, and goes to those that have the capability when
// the server ends a consumer.
type BasicCancel struct {
	ConsumerTag string
	NoWait      bool
}

func (*BasicCancel) Class() uint16 { return 60 }
func (*BasicCancel) ID() uint16    { return 30 }
func (*BasicCancel) Name() string  { return "basic.cancel" }

func (m *BasicCancel) walk(c codec) codec {
	c.short(&m.ConsumerTag)
	c.bits(&m.NoWait)
	return c
}

// BasicCancelOK goes either way, as BasicCancel does.
type BasicCancelOK struct {
	ConsumerTag string
}

func (*BasicCancelOK) Class() uint16 { return 60 }
func (*BasicCancelOK) ID() uint16    { return 31 }
func (*BasicCancelOK) Name() string  { return "basic.cancel-ok" }

func (m *BasicCancelOK) walk(c codec) codec {
	c.short(&m.ConsumerTag)
	return c
}

// BasicPublish comes from clients; content follows.
type BasicPublish struct {
	Exchange, RoutingKey string
	Mandatory, Immediate bool
}

func (*BasicPublish) Class() uint16 { return 60 }
func (*BasicPublish) ID() uint16    { return 40 }
func (*BasicPublish) Name() string  { return "basic.publish" }

func (m *BasicPublish) walk(c codec) codec {
	c.reserved16()
	c.short(&m.Exchange)
	c.short(&m.RoutingKey)
	c.bits(&m.Mandatory, &m.Immediate)
	return c
}

// BasicReturn goes to clients; content follows.
type BasicReturn struct {
	ReplyCode                       uint16
	ReplyText, Exchange, RoutingKey string
}

func (*BasicReturn) Class() uint16 { return 60 }
func (*BasicReturn) ID() uint16    { return 50 }
func (*BasicReturn) Name() string  { return "basic.return" }

func (m *BasicReturn) walk(c codec) codec {
	c.uint16(&m.ReplyCode)
	c.short(&m.ReplyText)
	c.short(&m.Exchange)
	c.short(&m.RoutingKey)
	return c
}

// BasicDeliver goes to clients; content follows.
type BasicDeliver struct {
	ConsumerTag          string
	DeliveryTag          uint64
	Redelivered          bool
	Exchange, RoutingKey string
}

func (*BasicDeliver) Class() uint16 { return 60 }
func (*BasicDeliver) ID() uint16    { return 60 }
func (*BasicDeliver) Name() string  { return "basic.deliver" }

func (m *BasicDeliver) walk(c codec) codec {
	c.short(&m.ConsumerTag)
	c.uint64(&m.DeliveryTag)
	c.bits(&m.Redelivered)
	c.short(&m.Exchange)
	c.short(&m.RoutingKey)
	return c
}

// BasicGet comes from clients.
type BasicGet struct {
	Queue string
	NoAck bool
}

func (*BasicGet) Class() uint16 { return 60 }
func (*BasicGet) ID() uint16    { return 70 }
func (*BasicGet) Name() string  { return "basic.get" }

func (m *BasicGet) walk(c codec) codec {
	c.reserved16()
	c.short(&m.Queue)
	c.bits(&m.NoAck)
	return c
}

// BasicGetOK goes to clients; content follows. MessageCount is what is left in the
// queue.
type BasicGetOK struct {
	DeliveryTag          uint64
	Redelivered          bool
	Exchange, RoutingKey string
	MessageCount         uint32
}

func (*BasicGetOK) Class() uint16 { return 60 }
func (*BasicGetOK) ID() uint16    { return 71 }
func (*BasicGetOK) Name() string  { return "basic.get-ok" }

func (m *BasicGetOK) walk(c codec) codec {
	c.uint64(&m.DeliveryTag)
	c.bits(&m.Redelivered)
	c.short(&m.Exchange)
	c.short(&m.RoutingKey)
	c.uint32(&m.MessageCount)
	return c
}

// BasicGetEmpty goes to clients.
type BasicGetEmpty struct{}

func (*BasicGetEmpty) Class() uint16 { return 60 }
func (*BasicGetEmpty) ID() uint16    { return 72 }
func (*BasicGetEmpty) Name() string  { return "basic.get-empty" }

func (*BasicGetEmpty) walk(c codec) codec {
	c.reservedShort()
	return c
}

// BasicAck goes either way: from clients for deliveries, to clients for publishes
// on a channel that confirms.
type BasicAck struct {
	DeliveryTag uint64
	Multiple    bool
}

func (*BasicAck) Class() uint16 { return 60 }
func (*BasicAck) ID() uint16    { return 80 }
func (*BasicAck) Name() string  { return "basic.ack" }

func (m *BasicAck) walk(c codec) codec {
	c.uint64(&m.DeliveryTag)
	c.bits(&m.Multiple)
	return c
}

// BasicReject comes from clients.
type BasicReject struct {
	DeliveryTag uint64
	Requeue     bool
}

func (*BasicReject) Class() uint16 { return 60 }
func (*BasicReject) ID() uint16    { return 90 }
func (*BasicReject) Name() string  { return "basic.reject" }

func (m *BasicReject) walk(c codec) codec {
	c.uint64(&m.DeliveryTag)
	c.bits(&m.Requeue)
	return c
}

// BasicRecoverAsync comes from clients.
type BasicRecoverAsync struct {
	Requeue bool
}

func (*BasicRecoverAsync) Class() uint16 { return 60 }
func (*BasicRecoverAsync) ID() uint16    { return 100 }
func (*BasicRecoverAsync) Name() string  { return "basic.recover-async" }

func (m *BasicRecoverAsync) walk(c codec) codec {
	c.bits(&m.Requeue)
	return c
}

// BasicRecover comes from clients.
type BasicRecover struct {
	Requeue bool
}

func (*BasicRecover) Class() uint16 { return 60 }
func (*BasicRecover) ID() uint16    { return 110 }
func (*BasicRecover) Name() string  { return "basic.recover" }

func (m *BasicRecover) walk(c codec) codec {
	c.bits(&m.Requeue)
	return c
}

// BasicRecoverOK goes to clients.
type BasicRecoverOK struct{}

func (*BasicRecoverOK) Class() uint16      { return 60 }
func (*BasicRecoverOK) ID() uint16         { return 111 }
func (*BasicRecoverOK) Name() string       { return "basic.recover-ok" }
func (*BasicRecoverOK) walk(c codec) codec { return c }

// BasicNack goes either way, as BasicAck does.
type BasicNack struct {
	DeliveryTag       uint64
	Multiple, Requeue bool
}

func (*BasicNack) Class() uint16 { return 60 }
func (*BasicNack) ID() uint16    { return 120 }
func (*BasicNack) Name() string  { return "basic.nack" }

func (m *BasicNack) walk(c codec) codec {
	c.uint64(&m.DeliveryTag)
	c.bits(&m.Multiple, &m.Requeue)
	return c
}
