using System;
using System.Collections;
using System.Collections.Generic;
using System.Linq;
using System.Reflection;
using System.Text;
using Newtonsoft.Json;
using Newtonsoft.Json.Linq;

namespace Transship
{
    /// <summary>A function of the handler: what transship.toml declares, bound to a method or a class.</summary>
    sealed class Function
    {
        const BindingFlags Members = BindingFlags.Static | BindingFlags.Instance | BindingFlags.Public | BindingFlags.NonPublic;
        const int RowsBetweenChecks = 256;

        public readonly string Name;
        public readonly string Kind;
        public readonly List<KeyValuePair<string, SqlType>> Arguments = new List<KeyValuePair<string, SqlType>>();
        public readonly SqlType Returns;
        public bool Merges { get { return merge != null; } }
        readonly bool takesColumns;
        readonly Type state;
        readonly MethodInfo method;
        readonly MethodInfo merge;
        readonly MethodInfo finish;
        readonly Func<JToken, object>[] readers;
        readonly Type[] parameters;

        Function(JToken entry, Type handler)
        {
            Name = (string)entry["name"];
            Kind = (string)entry["kind"];
            var batch = (string)entry["batch"];
            takesColumns = batch == "columns";
            if (entry["arguments"].Type == JTokenType.Null || entry["returns"].Type == JTokenType.Null) throw Refuse("transship.toml must give its arguments and result");
            foreach (var argument in entry["arguments"]) Arguments.Add(new KeyValuePair<string, SqlType>((string)argument["name"], new SqlType(argument["type"])));
            Returns = new SqlType(entry["returns"]);
            if (Kind == "aggregate" && batch == "row")
            {
                state = handler.GetNestedTypes(Members).FirstOrDefault(candidate => Values.IsSameName(Name, candidate.Name));
                if (state == null) throw Refuse("class " + handler.Name + " has no nested class of that name");
                method = Find(state, "Step");
                finish = Find(state, "Finish");
                merge = state.GetMethod("Merge", Members);
            }
            else if (Kind == "scalar" && (batch == "row" || takesColumns) || Kind == "table" && batch == "row")
            {
                method = Find(handler, Name);
                if (!method.IsStatic) throw Refuse("its method must be static");
            }
            else
            {
                throw Refuse("there are no " + Kind + " functions with batch = \"" + batch + "\" in C#");
            }
            parameters = method.GetParameters().Select(parameter => parameter.ParameterType).ToArray();
            var takesRows = takesColumns && Arguments.Count == 0 && parameters.SequenceEqual(new[] { typeof(int) });
            if (parameters.Length != Arguments.Count && !takesRows) throw Refuse("its method takes " + parameters.Length + " arguments, transship.toml says " + Arguments.Count);
            readers = Arguments.Select((argument, i) =>
            {
                if (takesColumns && !parameters[i].IsArray) throw Refuse("its argument " + (i + 1) + " must be an array");
                try
                {
                    return Values.Reader(argument.Value, takesColumns ? parameters[i].GetElementType() : parameters[i]);
                }
                catch (ArgumentException cause)
                {
                    throw Refuse(cause.Message);
                }
            }).ToArray();
        }

        /// <summary>The image's functions. ArgumentException says what is wrong with them.</summary>
        public static List<Function> Load(JToken manifest, Assembly assembly)
        {
            var name = System.IO.Path.GetFileNameWithoutExtension((string)manifest["handler"]);
            var handler = assembly.GetTypes().FirstOrDefault(candidate => candidate.Name == name);
            if (handler == null) throw new ArgumentException("there is no class " + name);
            return manifest["functions"].Select(entry => new Function(entry, handler)).ToList();
        }

        ArgumentException Refuse(string fact)
        {
            return new ArgumentException("function \"" + Name + "\": " + fact);
        }

        MethodInfo Find(Type owner, string name)
        {
            var found = owner.GetMethods(Members).FirstOrDefault(candidate => Values.IsSameName(name, candidate.Name));
            if (found == null) throw Refuse("class " + owner.Name + " has no method \"" + name + "\"");
            return found;
        }

        /// <summary>How many columns a batch of calls has: an aggregate function's has a group and a state as well.</summary>
        public int ColumnCount { get { return Arguments.Count + (Kind == "aggregate" ? 2 : 0); } }

        public IEnumerable<SqlType> CallTypes
        {
            get
            {
                var types = Arguments.Select(argument => argument.Value);
                return Kind == "aggregate" ? new[] { new SqlType("int8") }.Concat(types).Concat(new[] { new SqlType("bytea") }) : types;
            }
        }

        public IEnumerable<SqlType> ReplyTypes
        {
            get { return Kind == "table" ? new[] { new SqlType("int4"), Returns } : Kind == "aggregate" ? new[] { Returns, new SqlType("bytea") } : new[] { Returns }; }
        }

        public static void CheckCancelled(int row, Func<bool> isCancelled)
        {
            if (row % RowsBetweenChecks == 0 && isCancelled()) throw new Cancelled();
        }

        object[] ReadRow(JArray[] columns, int skipped, int row)
        {
            var values = new object[readers.Length];
            for (var i = 0; i < values.Length; i++) values[i] = ReadValue(columns[i + skipped], i, row);
            return values;
        }

        object ReadValue(JArray column, int argument, int row)
        {
            var type = Arguments[argument].Value.Text;
            try
            {
                return readers[argument](column[row]);
            }
            catch (OutOfRange)
            {
                throw new CallError("out_of_range", "C# cannot hold argument " + (argument + 1) + ", of type " + type + ", of row " + (row + 1) + " of the batch: it is " + column[row].ToString(Formatting.None) + ".", row);
            }
            catch (Misfit cause)
            {
                throw CallError.Violation("row " + row + " of column " + (argument + 1) + " is not of type " + type + ": " + cause.Message);
            }
        }

        object Invoke(MethodInfo target, object on, int? row, object[] values)
        {
            try
            {
                return target.Invoke(on, values);
            }
            catch (TargetInvocationException cause)
            {
                throw CallError.FromHandler(cause.InnerException, row);
            }
        }

        void Write(StringBuilder text, object value, int row)
        {
            try
            {
                Values.Write(text, Returns, value);
            }
            catch (Misfit cause)
            {
                throw new CallError("bad_result", "It returned " + cause.Message + "; the declared result is " + Returns.Text + ".", row);
            }
        }

        /// <summary>Appends the reply's columns, and gives its number of rows.</summary>
        public int Answer(JArray[] columns, int rows, Func<bool> isCancelled, StringBuilder reply)
        {
            if (takesColumns) return AnswerColumns(columns, rows, reply);
            var numbers = new StringBuilder("[");
            var results = new StringBuilder("[");
            var count = 0;
            for (var row = 0; row < rows; row++)
            {
                CheckCancelled(row, isCancelled);
                var answer = Invoke(method, null, row, ReadRow(columns, 0, row));
                foreach (var value in Kind == "table" ? Each(answer, row) : new[] { answer })
                {
                    if (count++ > 0)
                    {
                        numbers.Append(',');
                        results.Append(',');
                    }
                    CheckCancelled(count, isCancelled);
                    numbers.Append(row);
                    Write(results, value, row);
                }
            }
            if (Kind == "table") reply.Append(numbers).Append("],");
            reply.Append(results).Append(']');
            return count;
        }

        static IEnumerable<object> Each(object answer, int row)
        {
            if (answer == null) yield break;
            var values = answer as IEnumerable;
            if (values == null) throw new CallError("bad_result", "It returned a " + answer.GetType().Name + "; a table function returns an IEnumerable.", row);
            var enumerator = values.GetEnumerator();
            while (true)
            {
                try
                {
                    if (!enumerator.MoveNext()) yield break;
                }
                catch (Exception cause)
                {
                    throw CallError.FromHandler(cause, row);
                }
                yield return enumerator.Current;
            }
        }

        int AnswerColumns(JArray[] columns, int rows, StringBuilder reply)
        {
            var values = new object[parameters.Length];
            for (var i = 0; i < readers.Length; i++)
            {
                var array = Array.CreateInstance(parameters[i].GetElementType(), rows);
                for (var row = 0; row < rows; row++) array.SetValue(ReadValue(columns[i], i, row), row);
                values[i] = array;
            }
            if (readers.Length == 0 && values.Length == 1) values[0] = rows;
            var results = Invoke(method, null, null, values) as IList;
            var count = results == null ? 0 : results.Count;
            if (count != rows) throw new CallError("bad_result", "It returned " + count + " values for " + rows + " rows.");
            reply.Append('[');
            for (var row = 0; row < rows; row++)
            {
                if (row > 0) reply.Append(',');
                Write(reply, results[row], row);
            }
            reply.Append(']');
            return rows;
        }

        // Aggregate functions

        public object NewState()
        {
            return Activator.CreateInstance(state, true);
        }

        public void Step(object on, JArray[] columns, int row)
        {
            Invoke(method, on, row, ReadRow(columns, 1, row));
        }

        public void Finish(object on, int row, StringBuilder reply)
        {
            Write(reply, Invoke(finish, on, row, null), row);
        }

        public void Merge(object on, string bytes, int row)
        {
            if (merge == null) throw new CallError("bad_result", "Class " + state.Name + " has no method Merge, which parallel queries need.", row);
            var other = JsonConvert.DeserializeObject(Encoding.UTF8.GetString(Convert.FromBase64String(bytes)), state);
            Invoke(merge, on, row, new[] { other });
        }

        /// <summary>Public members travel, as JSON.</summary>
        public static string Serialize(object on)
        {
            return Convert.ToBase64String(Encoding.UTF8.GetBytes(JsonConvert.SerializeObject(on)));
        }
    }

    /// <summary>The groups of one exchange of an aggregate function: states by number.</summary>
    sealed class Groups
    {
        public readonly Function Function;
        public DateTime Used = DateTime.UtcNow;
        readonly Dictionary<long, object> states = new Dictionary<long, object>();

        public Groups(Function function)
        {
            Function = function;
        }

        /// <summary>Does one step (docs/protocol.md §4), appends the reply's columns and gives its number of rows.</summary>
        public int Answer(JArray[] columns, int rows, string step, Func<bool> isCancelled, StringBuilder reply)
        {
            var results = new StringBuilder("[");
            var bytes = new StringBuilder("[");
            for (var row = 0; row < rows; row++)
            {
                Function.CheckCancelled(row, isCancelled);
                var number = (long)columns[0][row];
                var comma = row > 0 ? "," : "";
                switch (step)
                {
                    case "accumulate": Function.Step(State(number), columns, row); break;
                    case "merge": Function.Merge(State(number), (string)columns[columns.Length - 1][row], row); break;
                    case "finish":
                        results.Append(comma);
                        bytes.Append(comma).Append("null");
                        Function.Finish(State(number), row, results);
                        break;
                    case "state":
                        results.Append(comma).Append("null");
                        bytes.Append(comma).Append('"').Append(Function.Serialize(State(number))).Append('"');
                        break;
                    case "forget": states.Remove(number); break;
                    default: throw CallError.Violation("there is no step \"" + step + "\"");
                }
            }
            reply.Append(results).Append("],").Append(bytes).Append(']');
            return step == "finish" || step == "state" ? rows : 0;
        }

        object State(long number)
        {
            object state;
            if (!states.TryGetValue(number, out state)) states[number] = state = Function.NewState();
            return state;
        }
    }
}
