package server

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"

	"google.golang.org/grpc/metadata"

	"transship/udf"
)

// Which tables a call has (docs/protocol.md §4.13). They come to handlers with the context, so that each sees those of its own call.

// The field of a request that names the offer.
const tablesField = "transship-tables"

var errUnknownOffer = &CallError{Kind: "protocol_violation", Message: "the server does not have the offer of tables that the call names"}

// callTables are those of a call. They stay there until it has ended, whatever becomes of their offer, and as long as anything of it has
// its context.
type callTables struct {
	// Whether it names an offer, which may not be there.
	isNamed  bool
	offer    *offer
	hasEnded atomic.Bool
}

// namedBy are the tables of a call whose request has these fields of the name.
func (o *offers) namedBy(names []string) *callTables {
	found := &callTables{isNamed: len(names) > 0}
	if found.isNamed {
		found.offer = o.find(names[0])
	}
	return found
}

func (o *offers) ofRequest(asked *http.Request) *callTables {
	return o.namedBy(asked.Header.Values(tablesField))
}

func (o *offers) ofStream(ctx context.Context) *callTables {
	fields, _ := metadata.FromIncomingContext(ctx)
	return o.namedBy(fields.Get(tablesField))
}

// check refuses a call that names an offer that is not here. This is no error of its handler.
func (c *callTables) check() error {
	if c.isNamed && c.offer == nil {
		return errUnknownOffer
	}
	return nil
}

// in is the context of the call's functions.
func (c *callTables) in(ctx context.Context) context.Context { return udf.WithTables(ctx, c.open) }

// end has what the call has left running open no more tables.
func (c *callTables) end() { c.hasEnded.Store(true) }

func (c *callTables) open(name string) (udf.SharedTable, error) {
	switch {
	case c.hasEnded.Load():
		return nil, noTable(name, "The call has ended.")
	case c.offer == nil:
		return nil, noTable(name, "The caller gives no tables to this call.")
	}
	if found := c.offer.table(name); found != nil {
		return found, nil
	}
	return nil, noTable(name, "The caller does not give it to this call.")
}

// noTable is an error of the handler that asks for the table.
func noTable(name, fact string) error {
	return fmt.Errorf("no shared table \"%s\"\ndetail: %s", name, fact)
}
