package broker

import (
	"crypto/rand"
	"encoding/base64"

	"fleet/pkg/broker/store"
	"fleet/pkg/broker/wire"
)

// channel is one channel of a connection. It belongs to the core.
type channel struct {
	core *core
	conn *conn
	id   uint16

	closing     bool // channel.close was sent; all but its answer is dropped
	prefetch    int  // for consumers to come
	globalLimit int  // unsettled deliveries of all consumers; 0: any number
	delivered   int  // those there are
	consumers   map[string]*consumer
	deliveryTag uint64 // of the last delivery
	held        map[uint64]*held
	lowest      uint64 // no tag below it is held
	lastQueue   string // the one that an empty name means

	confirm       bool
	publishTag    uint64    // of the last publish
	unconfirmed   []pending // ascending, not yet durable
	acks          []uint64  // to be confirmed at the end of the step
	confirmMarked bool      // it is in core.confirmed

	// reply waits until the disk has what it reports; what the client sent
	// behind it waits with it.
	reply   wire.Method
	replyAt store.Position
	queued  []command
	awaits  bool // it is in core.awaiting
}

// pending is a publish that is confirmed once the disk has it.
type pending struct {
	tag uint64
	at  store.Position
}

// handle takes what one connection has handed over.
func (c *core) handle(b batch) {
	cn := b.conn
	for i := range b.commands {
		switch cmd := &b.commands[i]; cmd.event {
		case connected:
			c.conns[cn] = struct{}{}
			if c.stopped.Load() {
				c.closeConn(cn, c.shutdown(), 0, 0)
			}
		case gone:
			c.releaseConn(cn)
			delete(c.conns, cn)
		case drained:
			c.unstall(cn)
		case damaged:
			if ch := cn.channels[cmd.channel]; ch != nil && ch.held[cmd.tag] != nil && ch.held[cmd.tag].entry.seq == cmd.seq {
				ch.settleDeliveries(cmd.tag, false, acked)
			}
		case stands:
			if c.shut.Load() && !cn.told && cn.who.blockedNotices && !cn.closing {
				cn.told = true
				c.send(cn, item{method: &wire.ConnectionBlocked{Reason: c.alarms.reason()}})
			}
		default:
			c.obey(cn, cmd)
		}
	}
}

func (a alarms) reason() string {
	if a.disk {
		return "low on disk"
	}
	return "low on memory" // RabbitMQ's words; here it is the limit on stored bytes
}

var unblocked = &wire.ConnectionUnblocked{}

// obey carries out one command and punishes a violation.
func (c *core) obey(cn *conn, cmd *command) {
	if cn.closing {
		if _, ok := cmd.method.(*wire.ConnectionCloseOK); ok {
			cn.end()
		}
		return
	}
	if cmd.wrong != nil {
		c.closeConn(cn, cmd.wrong, cmd.wrong.class, cmd.wrong.method)
		return
	}
	if ch := cn.channels[cmd.channel]; ch != nil && ch.reply != nil {
		ch.queued = append(ch.queued, *cmd)
		return
	}
	if _, ok := cmd.method.(*wire.ConnectionClose); ok && cn.paused > 0 {
		cn.goodbye = cmd // what came before it counts
		return
	}
	v := c.dispatch(cn, cmd)
	if v == nil {
		return
	}
	class, method := v.class, v.method
	if class == 0 {
		class, method = cmd.method.Class(), cmd.method.ID()
	}
	ch := cn.channels[cmd.channel]
	if v.whole || ch == nil {
		c.closeConn(cn, v, class, method)
		return
	}
	c.server.opts.Log.Debug("a channel is closed", "client", cn.who.name, "user", cn.who.user,
		"code", v.code, "reason", v.text, "method", cmd.method.Name())
	c.releaseChannel(ch)
	ch.closing = true
	cn.channels[ch.id] = ch
	c.send(cn, item{channel: ch.id, method: &wire.ChannelClose{ReplyCode: v.code,
		ReplyText: replyText(v.code, "%s", v.text), ClassID: class, MethodID: method}})
}

// dispatch finds what a method is about: the connection, opening and closing
// channels, or an open channel.
func (c *core) dispatch(cn *conn, cmd *command) *violation {
	ch := cn.channels[cmd.channel]
	if cmd.method.Class() == 10 && cmd.channel != 0 {
		return forbid(503, "unimplemented method")
	}
	switch m := cmd.method.(type) {
	case *wire.ConnectionClose:
		cn.closing = true
		c.releaseConn(cn)
		c.send(cn, item{method: &wire.ConnectionCloseOK{}, last: true})
		return nil
	case *wire.ConnectionUpdateSecret:
		c.send(cn, item{method: &wire.ConnectionUpdateSecretOK{}})
		return nil
	case *wire.ChannelOpen:
		switch {
		case cmd.channel == 0:
			return forbid(504, "unexpected method in connection state running")
		case ch != nil:
			return forbid(504, "second 'channel.open' seen")
		}
		cn.channels[cmd.channel] = &channel{core: c, conn: cn, id: cmd.channel, consumers: map[string]*consumer{}, held: map[uint64]*held{}}
		c.send(cn, item{channel: cmd.channel, method: &wire.ChannelOpenOK{}})
		return nil
	case *wire.ChannelClose:
		if ch == nil {
			return forbid(504, "expected 'channel.open'")
		}
		ch.sendConfirms() // those that are due go before the answer
		c.releaseChannel(ch)
		c.send(cn, item{channel: cmd.channel, method: &wire.ChannelCloseOK{}})
		return nil
	case *wire.ChannelCloseOK:
		if ch != nil && ch.closing {
			delete(cn.channels, cmd.channel)
		}
		return nil
	default:
		switch {
		case ch == nil && cmd.channel == 0:
			return forbid(504, "unexpected method in connection state running")
		case ch == nil:
			return forbid(504, "expected 'channel.open'")
		case ch.closing:
			return nil
		case cmd.content != nil:
			return ch.publish(m.(*wire.BasicPublish), cmd.content)
		}
		return ch.do(m)
	}
}

// do carries out a method on an open channel.
func (ch *channel) do(method wire.Method) *violation {
	c := ch.core
	answer := func(m wire.Method) *violation {
		c.send(ch.conn, item{channel: ch.id, method: m})
		return nil
	}
	switch m := method.(type) {
	case *wire.ChannelFlow:
		if !m.Active {
			return forbid(540, "active=false")
		}
		return answer(&wire.ChannelFlowOK{Active: true})
	case *wire.ExchangeDeclare:
		return ch.declareExchange(m)
	case *wire.ExchangeDelete:
		return ch.deleteExchange(m)
	case *wire.ExchangeBind:
		return ch.bindExchange(m)
	case *wire.ExchangeUnbind:
		return ch.unbindExchange(m)
	case *wire.QueueDeclare:
		return ch.declareQueue(m)
	case *wire.QueueBind:
		return ch.bindQueue(m)
	case *wire.QueueUnbind:
		return ch.unbindQueue(m)
	case *wire.QueuePurge:
		return ch.purgeQueue(m)
	case *wire.QueueDelete:
		return ch.deleteQueueBy(m)
	case *wire.BasicQos:
		return ch.setPrefetch(m)
	case *wire.BasicConsume:
		return ch.consume(m)
	case *wire.BasicCancel:
		if k := ch.consumers[m.ConsumerTag]; k != nil {
			c.cancel(k)
		}
		if m.NoWait {
			return nil
		}
		return answer(&wire.BasicCancelOK{ConsumerTag: m.ConsumerTag})
	case *wire.BasicCancelOK:
		return nil
	case *wire.BasicGet:
		return ch.get(m)
	case *wire.BasicAck:
		return ch.settleDeliveries(m.DeliveryTag, m.Multiple, acked)
	case *wire.BasicNack:
		return ch.settleDeliveries(m.DeliveryTag, m.Multiple, fateOf(m.Requeue))
	case *wire.BasicReject:
		return ch.settleDeliveries(m.DeliveryTag, false, fateOf(m.Requeue))
	case *wire.BasicRecover:
		if !m.Requeue {
			return forbid(540, "requeue=false")
		}
		ch.requeueAll()
		return answer(&wire.BasicRecoverOK{})
	case *wire.BasicRecoverAsync:
		if !m.Requeue {
			return forbid(540, "requeue=false")
		}
		ch.requeueAll()
		return nil
	case *wire.ConfirmSelect:
		ch.confirm = true
		if m.NoWait {
			return nil
		}
		return answer(&wire.ConfirmSelectOK{})
	case *wire.TxSelect, *wire.TxCommit, *wire.TxRollback:
		return forbid(540, "transactions are not supported; use publisher confirms")
	}
	return forbid(503, "unimplemented method")
}

func fateOf(requeue bool) fate {
	if requeue {
		return requeued
	}
	return rejected
}

func (ch *channel) setPrefetch(m *wire.BasicQos) *violation {
	lavin := ch.core.server.opts.Answers == LavinMQ
	switch {
	case m.PrefetchSize != 0 && lavin:
		return refuse(540, "prefetch size is not implemented")
	case m.PrefetchSize != 0:
		return forbid(540, "prefetch_size!=0 (%d)", m.PrefetchSize)
	case m.Global:
		ch.globalLimit = int(m.PrefetchCount)
		ch.resume()
	default:
		ch.prefetch = int(m.PrefetchCount)
		if lavin {
			for _, k := range ch.consumers {
				k.limit = ch.prefetch
			}
			ch.resume()
		}
	}
	ch.core.send(ch.conn, item{channel: ch.id, method: &wire.BasicQosOK{}})
	return nil
}

// closeConn says why and lets go of all that the connection had. The socket is
// closed when the client has answered, or some time later.
func (c *core) closeConn(cn *conn, v *violation, class, method uint16) {
	if cn.closing {
		return
	}
	c.server.opts.Log.Warn("a connection is closed", "client", cn.who.name, "user", cn.who.user,
		"remote", cn.raw.RemoteAddr().String(), "code", v.code, "reason", v.text)
	cn.closing = true
	c.releaseConn(cn)
	c.send(cn, item{method: &wire.ConnectionClose{ReplyCode: v.code, ReplyText: replyText(v.code, "%s", v.text),
		ClassID: class, MethodID: method}})
	cn.expire()
}

// releaseConn lets go of all that a connection had.
func (c *core) releaseConn(cn *conn) {
	for _, ch := range cn.channels {
		c.releaseChannel(ch)
	}
	for q := range cn.queues {
		c.deleteQueue(q)
	}
}

// releaseChannel lets go of all that a channel had, and of the channel.
func (c *core) releaseChannel(ch *channel) {
	if ch.reply != nil {
		ch.reply, ch.queued = nil, nil
		ch.unpause()
	}
	for _, k := range ch.consumers {
		c.cancel(k)
	}
	ch.requeueAll()
	ch.unconfirmed, ch.acks = nil, nil
	delete(ch.conn.channels, ch.id)
}

func randomName() string {
	var b [16]byte
	rand.Read(b[:])
	return base64.RawURLEncoding.EncodeToString(b[:])
}
