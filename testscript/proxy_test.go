package testscript_test

import (
	"context"
	"net"
	"net/url"
	"strconv"

	"github.com/rogpeppe/go-internal/testscript"

	"fleet/pkg/bus/proxy"
)

const proxyUsage = `amqp-proxy VERB NAME ...:
	start NAME URL VAR              a proxy before the broker of URL; VAR is the URL to use
	cut NAME                        reset every connection
	abandon NAME                    the same for the client; the broker sees nothing of it
	refuse NAME on|off              new connections fail
	stall NAME up|down on|off       bytes to the broker (up) or from it (down) stand still
	hold NAME up|down METHOD on|off hold from the first frame of METHOD on; off lets go
	held NAME N                     until N frames are held
	drop NAME                       forget what is held
	connections NAME N              until N connections have been made
	METHOD: publish, ack, nack, return, deliver, consume, declare`

// proxyMethods are the frames that scripts hold. To the client an ack is the
// broker's confirm.
var proxyMethods = map[string]proxy.Method{
	"publish": proxy.BasicPublish, "ack": proxy.BasicAck, "nack": proxy.BasicNack, "return": proxy.BasicReturn,
	"deliver": proxy.BasicDeliver, "consume": proxy.BasicConsume, "declare": proxy.QueueDeclare,
}

var proxyDirs = map[string]proxy.Dir{"up": proxy.ToBroker, "down": proxy.ToClient}

// cmdProxy: amqp-proxy VERB NAME ...
func cmdProxy(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) >= 2, proxyUsage)
	w, verb, name, rest := worldOf(ts), args[0], args[1], args[2:]
	if verb == "start" {
		usage(ts, len(rest) == 2, proxyUsage)
		startProxy(ts, name, rest[0], rest[1])
		return
	}
	p := w.proxies[name]
	if p == nil {
		ts.Fatalf("no proxy %s was started", name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), waitBound)
	defer cancel()
	want := map[string]int{"refuse": 1, "stall": 2, "hold": 3, "held": 1, "connections": 1}
	usage(ts, len(rest) == want[verb], proxyUsage)
	switch verb {
	case "cut":
		p.Cut()
	case "abandon":
		p.Abandon()
	case "drop":
		p.Drop()
	case "refuse":
		p.Refuse(isOn(ts, rest[0]))
	case "stall":
		p.Stall(dirOf(ts, rest[0]), isOn(ts, rest[1]))
	case "hold":
		m, ok := proxyMethods[rest[1]]
		usage(ts, ok, proxyUsage)
		p.Hold(m, dirOf(ts, rest[0]), isOn(ts, rest[2]))
	case "held", "connections":
		n, err := strconv.Atoi(rest[0])
		ts.Check(err)
		await := p.AwaitHeld
		if verb == "connections" {
			await = p.AwaitConnections
		}
		if err := await(ctx, n); err != nil {
			_, made := p.Connections()
			ts.Fatalf("%s %d: %v; %d are held, %d connections were made", verb, n, err, p.Held(), made)
		}
	default:
		ts.Fatalf("usage: %s", proxyUsage)
	}
}

func startProxy(ts *testscript.TestScript, name, target, variable string) {
	w := worldOf(ts)
	if w.proxies[name] != nil {
		ts.Fatalf("proxy %s was started already", name)
	}
	u, err := url.Parse(target)
	ts.Check(err)
	address := u.Host
	if u.Port() == "" {
		address = net.JoinHostPort(u.Hostname(), "5672")
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.atEnd = append(w.atEnd, cancel)
	p, err := proxy.New(ctx, "127.0.0.1:0", address)
	ts.Check(err)
	w.proxies[name] = p
	ts.Setenv(variable, p.URL(target))
}

func dirOf(ts *testscript.TestScript, word string) proxy.Dir {
	d, ok := proxyDirs[word]
	usage(ts, ok, proxyUsage)
	return d
}

func isOn(ts *testscript.TestScript, word string) bool {
	usage(ts, word == "on" || word == "off", proxyUsage)
	return word == "on"
}
