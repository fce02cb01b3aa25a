package config

import (
	"fmt"
	"net"
	"strconv"

	"fleet/pkg/fault"
	"fleet/pkg/topology"
)

// CheckAddress checks the form of an address to listen on, HOST:PORT; an empty
// host is every interface, port 0 a free one. It fails with fault.Usage.
func CheckAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	n, numeric := strconv.ParseUint(port, 10, 16)
	if err != nil || numeric != nil || strconv.FormatUint(n, 10) != port || len(host) > 255 {
		return fault.New(fault.Usage, "%s is not an address", quote(address)).
			WithHint("HOST:PORT, such as 127.0.0.1:5672, [::1]:5672, or port 0 for a free one")
	}
	return nil
}

// loopback says whether host is an IP address of this machine's loopback.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// reachable says whether host certainly lets other machines in: it is every
// interface or an IP address that is not loopback. What a name stands for is
// found out when the listener is opened.
func reachable(host string) bool {
	return host == "" || net.ParseIP(host) != nil && !loopback(host)
}

// finishEmbedded sees to it that the embedded broker can be what its keys say,
// and makes its paths absolute.
func (r *reader) finishEmbedded() {
	d := r.draft
	e := &d.Embedded
	e.Certificate, e.Key = under(d.Dir, e.Certificate), under(d.Dir, e.Key)
	if (e.Certificate == "") != (e.Key == "") {
		r.complain(r.at("embedded.certificate", "embedded.key"), "embedded: TLS takes a certificate and its key, and one of the two is missing",
			"set both embedded.certificate and embedded.key")
	}
	for _, address := range e.Listen {
		if host, _, err := net.SplitHostPort(address); err == nil && reachable(host) && e.Certificate == "" {
			r.complain(r.at("embedded.listen"), "embedded.listen: "+address+" can be reached from other machines, which takes TLS",
				"set embedded.certificate and embedded.key, or listen on 127.0.0.1")
		}
	}
	if d.Broker.Embedded() && d.Broker.QueueType != topology.Classic {
		r.complain(r.at("broker.queue_type", "broker.url"), "broker.queue_type: quorum queues are for a RabbitMQ cluster, and the embedded broker is one process",
			"take the line away, or set broker.url to the cluster's")
	}
	// A text may grow by half when it is encoded, and the rest of a message is small.
	if least := int64(d.Limits.TextBytes)*3/2 + 64<<10; d.Broker.Embedded() && d.Embedded.MessageBytes < least {
		r.complain(r.at("embedded.message_bytes", "limits.text_bytes"), fmt.Sprintf("embedded.message_bytes: %s is too little for a text of limits.text_bytes, %s",
			showSize(d.Embedded.MessageBytes), showSize(d.Limits.TextBytes)), "it takes "+strconv.FormatInt(least, 10))
	}
}
