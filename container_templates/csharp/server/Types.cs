using System;
using System.Collections.Generic;
using Newtonsoft.Json.Linq;

namespace Transship
{
    /// <summary>A span of time in PostgreSQL's parts.</summary>
    public struct Interval
    {
        public int Months;
        public int Days;
        public long Nanoseconds;
    }

    /// <summary>A range; a bound that is null is infinite. T is nullable, such as long?.</summary>
    public sealed class Range<T>
    {
        public T Lower;
        public T Upper;
        public bool LowerInc;
        public bool UpperInc;
        public bool Empty;
    }

    /// <summary>A type of docs/types.md, as functions.json describes it.</summary>
    sealed class SqlType
    {
        public readonly string Type;
        public readonly string Text;
        public readonly SqlType Element;
        /// <summary>Attributes of a composite type and parts of a range, by name.</summary>
        public readonly List<KeyValuePair<string, SqlType>> Parts = new List<KeyValuePair<string, SqlType>>();

        public SqlType(string type)
        {
            Type = Text = type;
        }

        SqlType(string type, string text, SqlType element)
        {
            Type = type;
            Text = text;
            Element = element;
        }

        /// <summary>A type of a shared table's column, which has no composite types and no ranges.</summary>
        public static SqlType OfColumn(string text)
        {
            if (!text.EndsWith("[]", StringComparison.Ordinal)) return new SqlType(text);
            return new SqlType("array", text, OfColumn(text.Substring(0, text.Length - 2)));
        }

        public SqlType(JToken node)
        {
            Type = (string)node["type"];
            Text = (string)node["text"];
            if (node["element"] != null) Element = new SqlType(node["element"]);
            foreach (var attribute in node["attributes"] ?? new JArray()) Add((string)attribute["name"], new SqlType(attribute));
            if (Type != "range") return;
            Add("lower", Element);
            Add("upper", Element);
            foreach (var name in new[] { "lower_inc", "upper_inc", "empty" }) Add(name, new SqlType("bool"));
        }

        void Add(string name, SqlType type)
        {
            Parts.Add(new KeyValuePair<string, SqlType>(name, type));
        }
    }

    /// <summary>A call that failed; kind is one of docs/protocol.md §5, row counts from zero within the batch.</summary>
    sealed class CallError : Exception
    {
        public readonly string Kind;
        public readonly int? Row;
        public readonly string Traceback;

        public CallError(string kind, string message, int? row = null, string traceback = null) : base(message)
        {
            Kind = kind;
            Row = row;
            Traceback = traceback;
        }

        public static CallError Violation(string message)
        {
            return new CallError("protocol_violation", message);
        }

        public static Exception FromHandler(Exception cause, int? row)
        {
            if (cause is CallError || cause is Cancelled) return cause;
            var name = cause.GetType().Name;
            try
            {
                return new CallError("user_code", name + ": " + cause.Message, row, cause.ToString());
            }
            catch (Exception)
            {
                // An exception whose own text fails.
                return new CallError("user_code", name, row, name);
            }
        }
    }

    /// <summary>The client has gone; nobody waits for the rest.</summary>
    sealed class Cancelled : Exception
    {
    }

    /// <summary>A value does not fit; the message says what it is.</summary>
    sealed class Misfit : Exception
    {
        public Misfit(object value) : base(Describe(value))
        {
        }

        static string Describe(object value)
        {
            string text;
            try
            {
                text = value == null ? "NULL" : value + " of " + value.GetType().Name;
            }
            catch (Exception)
            {
                text = "a " + value.GetType().Name;
            }
            return text.Length > 80 ? text.Substring(0, 80) + "..." : text;
        }
    }

    /// <summary>A value is of its type, but outside of what the handler's class can hold.</summary>
    sealed class OutOfRange : Exception
    {
    }
}
