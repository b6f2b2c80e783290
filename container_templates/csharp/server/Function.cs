using System;
using System.Collections;
using System.Collections.Generic;
using System.Linq;
using System.Reflection;
using System.Text;
using System.Threading;
using System.Threading.Tasks;
using Newtonsoft.Json;
using Newtonsoft.Json.Linq;

namespace Transship
{
    /// <summary>A function of the handler: what transship.toml declares, bound to a method or a class.</summary>
    sealed class Function
    {
        const BindingFlags Members = BindingFlags.Static | BindingFlags.Instance | BindingFlags.Public | BindingFlags.NonPublic;
        /// <summary>Results, and bytes of text, of a table function that go out together.</summary>
        const int ResultsPerPart = 1024, BytesPerPart = 1 << 20;
        static readonly SqlType Text = new SqlType("text"), Int4 = new SqlType("int4"), Bytea = new SqlType("bytea");

        public readonly string Name;
        public bool Merges { get { return merge != null; } }
        readonly string kind;
        readonly SqlType returns;
        readonly char format;
        readonly bool takesColumns, takesToken;
        readonly int concurrency;
        readonly Type state;
        readonly MethodInfo method, merge, finish;
        readonly List<SqlType> arguments = new List<SqlType>();
        readonly Func<GivenColumn, int, object>[] readers;
        readonly Type[] parameters;

        Function(JToken entry, int concurrency, char format, Type handler)
        {
            Name = (string)entry["name"];
            kind = (string)entry["kind"];
            this.format = format;
            this.concurrency = concurrency;
            var batch = (string)entry["batch"];
            takesColumns = batch == "columns";
            foreach (var argument in entry["arguments"]) arguments.Add(new SqlType(argument["type"]));
            returns = new SqlType(entry["returns"]);
            if (kind == "aggregate" && batch == "row")
            {
                state = handler.GetNestedTypes(Members).FirstOrDefault(candidate => Values.IsSameName(Name, candidate.Name));
                if (state == null) throw Refuse("class " + handler.Name + " has no nested class of that name");
                method = Find(state, "Step");
                finish = Find(state, "Finish");
                merge = state.GetMethod("Merge", Members);
            }
            else if (kind == "scalar" && (batch == "row" || takesColumns) || (kind == "table" || kind == "map") && batch == "row")
            {
                method = Find(handler, Name);
                if (!method.IsStatic) throw Refuse("its method must be static");
            }
            else
            {
                throw Refuse("there are no " + kind + " functions with batch = \"" + batch + "\" in C#");
            }
            var taken = method.GetParameters().Select(parameter => parameter.ParameterType).ToList();
            takesToken = taken.Count > 0 && taken.Last() == typeof(CancellationToken);
            if (takesToken) taken.RemoveAt(taken.Count - 1);
            if (kind == "map")
            {
                if (taken.Count != 1 || taken[0] != typeof(IEnumerable<object[]>)) throw Refuse("a map function takes an IEnumerable<object[]> of rows");
                readers = arguments.Select(argument => Values.ColumnReader(argument, Values.ClassOf(argument))).ToArray();
                return;
            }
            parameters = taken.ToArray();
            var takesRows = takesColumns && arguments.Count == 0 && parameters.SequenceEqual(new[] { typeof(int) });
            if (parameters.Length != arguments.Count && !takesRows) throw Refuse("its method takes " + parameters.Length + " arguments, transship.toml says " + arguments.Count);
            readers = arguments.Select((argument, i) =>
            {
                if (takesColumns && !parameters[i].IsArray) throw Refuse("its argument " + (i + 1) + " must be an array");
                try
                {
                    return Values.ColumnReader(argument, takesColumns ? parameters[i].GetElementType() : parameters[i]);
                }
                catch (ArgumentException cause)
                {
                    throw Refuse(cause.Message);
                }
            }).ToArray();
        }

        /// <summary>The image's functions, in the manifest's order. ArgumentException says what is wrong with them.</summary>
        public static List<Function> Load(JToken described, JToken manifest, IntPtr server, Assembly assembly)
        {
            var name = System.IO.Path.GetFileNameWithoutExtension((string)described["handler"]);
            var handler = assembly.GetTypes().FirstOrDefault(candidate => candidate.Name == name);
            if (handler == null) throw new ArgumentException("there is no class " + name);
            return manifest["functions"].Select((entry, number) =>
            {
                var declared = described["functions"].First(candidate => (string)candidate["name"] == (string)entry["name"]);
                return new Function(declared, Core.Concurrency(server, number), Core.ResultFormat(server, number), handler);
            }).ToList();
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

        /// <summary>A row's arguments, from the column with this number on.</summary>
        object[] ReadRow(Call call, GivenColumn[] columns, int skipped, int row)
        {
            var values = new object[readers.Length + (takesToken ? 1 : 0)];
            for (var i = 0; i < readers.Length; i++) values[i] = ReadValue(columns[i + skipped], i, row);
            if (takesToken) values[readers.Length] = call.Token;
            return values;
        }

        object ReadValue(GivenColumn column, int argument, int row)
        {
            var type = arguments[argument].Text;
            try
            {
                return readers[argument](column, row);
            }
            catch (OutOfRange)
            {
                throw new CallError("out_of_range", "C# cannot hold argument " + (argument + 1) + ", of type " + type + ", of row " + (row + 1) + " of the batch: it is " + column.Shown(row) + ".", row);
            }
            catch (Exception cause) when (cause is Misfit || cause is FormatException)
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

        /// <summary>What a handler has returned, once it is there.</summary>
        object Awaited(Call call, object answer, int? row)
        {
            var task = answer as Task;
            if (task == null) return answer;
            call.WaitAny(new[] { task });
            return ResultOf(task, row);
        }

        static object ResultOf(Task task, int? row)
        {
            if (task.IsFaulted) throw CallError.FromHandler(task.Exception.InnerException, row);
            if (task.IsCanceled) throw new CallError("user_code", "TaskCanceledException: the task was cancelled", row);
            var result = task.GetType().GetProperty("Result");
            if (result == null) throw new CallError("bad_result", "It returned a task without a result.", row);
            return result.GetValue(task, null);
        }

        void Add(Results results, object value, int? row)
        {
            try
            {
                results.Add(value);
            }
            catch (Misfit cause)
            {
                throw Unfit(cause, row);
            }
        }

        CallError Unfit(Misfit cause, int? row)
        {
            return new CallError("bad_result", "It returned " + cause.Message + "; the declared result is " + returns.Text + ".", row);
        }

        /// <summary>The reply's columns, or their last part.</summary>
        public Results[] Answer(Call call, GivenColumn[] columns)
        {
            if (takesColumns) return AnswerColumns(call, columns);
            return kind == "table" ? AnswerTable(call, columns) : AnswerRows(call, columns);
        }

        Results[] AnswerRows(Call call, GivenColumn[] columns)
        {
            var results = new Results(returns, format);
            var errors = call.HasRowErrors ? new Results(Text, 'z') : null;
            // Calls under way by row, oldest first; results are added in the order of the rows.
            var running = new Queue<KeyValuePair<int, Task>>();
            Action<int, Func<object>> add = (row, get) =>
            {
                object value;
                try
                {
                    value = get();
                }
                catch (CallError cause) when (errors != null && cause.Kind == "user_code")
                {
                    results.Add(null);
                    errors.Add(WellFormed(cause.Message));
                    return;
                }
                Add(results, value, row);
                if (errors != null) errors.Add(null);
            };
            Action addOldest = () =>
            {
                var oldest = running.Dequeue();
                call.WaitAny(new[] { oldest.Value });
                add(oldest.Key, () => ResultOf(oldest.Value, oldest.Key));
            };
            for (var row = 0; row < call.Rows; row++)
            {
                call.CheckCancelled();
                object answer = null;
                CallError failure = null;
                try
                {
                    answer = Invoke(method, null, row, ReadRow(call, columns, 0, row));
                }
                catch (CallError cause)
                {
                    failure = cause;
                }
                var task = answer as Task;
                if (task != null)
                {
                    running.Enqueue(new KeyValuePair<int, Task>(row, task));
                    // Room is made by any task that ends; results wait for their turn.
                    while (running.Count(entry => !entry.Value.IsCompleted) >= concurrency) call.WaitAny(running.Select(entry => entry.Value).Where(each => !each.IsCompleted).ToArray());
                    while (running.Count > 0 && running.Peek().Value.IsCompleted) addOldest();
                    continue;
                }
                while (running.Count > 0) addOldest();
                add(row, () => failure == null ? answer : throw failure);
            }
            while (running.Count > 0) addOldest();
            return errors == null ? new[] { results } : new[] { results, errors };
        }

        static string WellFormed(string text)
        {
            return Encoding.UTF8.GetString(Encoding.UTF8.GetBytes(text));
        }

        Results[] AnswerTable(Call call, GivenColumn[] columns)
        {
            var numbers = new Results(Int4, 'l');
            var results = new Results(returns, format);
            var reply = new[] { numbers, results };
            for (var row = 0; row < call.Rows; row++)
            {
                call.CheckCancelled();
                var answer = Awaited(call, Invoke(method, null, row, ReadRow(call, columns, 0, row)), row);
                foreach (var value in Each(answer, row))
                {
                    call.CheckCancelled();
                    if (numbers.Rows >= ResultsPerPart || results.TextBytes >= BytesPerPart)
                    {
                        if (!Results.Lend(reply, lent => Core.Part(call.Work, numbers.Rows, lent))) throw new Cancelled();
                        foreach (var column in reply) column.Clear();
                    }
                    Add(results, value, row);
                    numbers.Add(row);
                }
            }
            return reply;
        }

        /// <summary>Answers a map function's stream. The last part of its reply.</summary>
        public Results[] AnswerStream(Call call)
        {
            var results = new Results(returns, format);
            var reply = new[] { results };
            Action give = () =>
            {
                if (!Results.Lend(reply, lent => Core.Part(call.Work, results.Rows, lent))) throw new Cancelled();
                results.Clear();
            };
            // Nothing is kept back while the stream may wait for its client.
            var stream = new MapStream(call.Work, () => { if (results.Rows > 0) give(); });
            var rows = StreamRows(stream);
            Exception cut;
            try
            {
                foreach (var value in Each(Awaited(call, Invoke(method, null, null, takesToken ? new object[] { rows, call.Token } : new object[] { rows }), null), null))
                {
                    try
                    {
                        // Not under the lock: code of the handler's may run, and wait for a thread that waits for rows.
                        var settled = results.Settled(value);
                        lock (stream)
                        {
                            if (stream.Cut != null) throw stream.Cut;
                            call.CheckCancelled();
                            if (results.Rows >= ResultsPerPart || results.TextBytes >= BytesPerPart) give();
                            results.AddSettled(settled);
                        }
                    }
                    catch (Misfit cause)
                    {
                        throw stream.Cut ?? Unfit(cause, null);
                    }
                }
            }
            finally
            {
                cut = stream.End();
            }
            if (cut != null) throw cut;
            return reply;
        }

        IEnumerable<object[]> StreamRows(MapStream stream)
        {
            while (true)
            {
                int rows = 0;
                var columns = Noted(stream, () => stream.Next(out rows));
                if (columns == null) yield break;
                for (var row = 0; row < rows; row++)
                {
                    var values = new object[readers.Length];
                    Noted(stream, () =>
                    {
                        for (var i = 0; i < values.Length; i++) values[i] = ReadValue(columns[i], i, row);
                        return values;
                    });
                    yield return values;
                }
            }
        }

        // What cuts the rows off ends the call, whatever the handler makes of the exception. It is told once, and gets no rows after that.
        static T Noted<T>(MapStream stream, Func<T> read)
        {
            try
            {
                return read();
            }
            catch (Exception cause)
            {
                if (stream.Cut == null) stream.Cut = cause;
                throw;
            }
        }

        static IEnumerable<object> Each(object answer, int? row)
        {
            if (answer == null) yield break;
            var values = answer as IEnumerable;
            if (values == null) throw new CallError("bad_result", "It returned a " + answer.GetType().Name + "; a table or map function returns an IEnumerable.", row);
            IEnumerator enumerator;
            try
            {
                enumerator = values.GetEnumerator();
            }
            catch (Exception cause)
            {
                throw CallError.FromHandler(cause, row);
            }
            try
            {
                while (true)
                {
                    object value;
                    try
                    {
                        if (!enumerator.MoveNext()) yield break;
                        value = enumerator.Current;
                    }
                    catch (Exception cause)
                    {
                        throw CallError.FromHandler(cause, row);
                    }
                    yield return value;
                }
            }
            finally
            {
                var disposable = enumerator as IDisposable;
                if (disposable != null) disposable.Dispose();
            }
        }

        Results[] AnswerColumns(Call call, GivenColumn[] columns)
        {
            var values = new object[parameters.Length + (takesToken ? 1 : 0)];
            for (var i = 0; i < readers.Length; i++) values[i] = ReadColumn(columns[i], i, call.Rows);
            if (readers.Length == 0 && parameters.Length == 1) values[0] = call.Rows;
            if (takesToken) values[parameters.Length] = call.Token;
            var list = Awaited(call, Invoke(method, null, null, values), null) as IList;
            var count = list == null ? 0 : list.Count;
            if (count != call.Rows) throw new CallError("bad_result", "It returned " + count + " values for " + call.Rows + " rows.");
            var results = new Results(returns, format);
            for (var row = 0; row < call.Rows; row++) Add(results, list[row], row);
            return new[] { results };
        }

        /// <summary>An array of the handler's class. Columns of long and double are what they are in memory.</summary>
        Array ReadColumn(GivenColumn column, int argument, int rows)
        {
            var element = parameters[argument].GetElementType();
            if (!column.HasNulls && element == typeof(long)) return column.Integers;
            if (!column.HasNulls && element == typeof(double)) return column.Floats;
            var array = Array.CreateInstance(element, rows);
            for (var row = 0; row < rows; row++) array.SetValue(ReadValue(column, argument, row), row);
            return array;
        }

        // Aggregate functions

        public object NewState(int row)
        {
            try
            {
                return Activator.CreateInstance(state, true);
            }
            catch (TargetInvocationException cause)
            {
                throw CallError.FromHandler(cause.InnerException, row);
            }
        }

        public void Step(Call call, object on, GivenColumn[] columns, int row)
        {
            Awaited(call, Invoke(method, on, row, ReadRow(call, columns, 1, row)), row);
        }

        public void Finish(Call call, object on, int row, Results results)
        {
            Add(results, Awaited(call, Invoke(finish, on, row, null), row), row);
        }

        public void Merge(Call call, object on, byte[] bytes, int row)
        {
            if (merge == null) throw new CallError("bad_result", "Class " + state.Name + " has no method Merge, which parallel queries need.", row);
            object other;
            try
            {
                other = JsonConvert.DeserializeObject(Encoding.UTF8.GetString(bytes), state);
            }
            catch (Exception cause)
            {
                throw CallError.FromHandler(cause, row);
            }
            Awaited(call, Invoke(merge, on, row, new[] { other }), row);
        }

        /// <summary>Public members travel, as JSON.</summary>
        public byte[] Serialize(object on, int row)
        {
            try
            {
                return Encoding.UTF8.GetBytes(JsonConvert.SerializeObject(on));
            }
            catch (Exception cause)
            {
                throw CallError.FromHandler(cause, row);
            }
        }

        /// <summary>Columns of results and of states.</summary>
        public Results[] NewReply()
        {
            return new[] { new Results(returns, format), new Results(Bytea, 'z') };
        }
    }

    /// <summary>
    /// The batches of a map function's stream. The handler may take rows on other threads than the one that gives results, but the core has
    /// one thread at a time work with a unit of work: whoever does holds this object's lock.
    /// </summary>
    sealed class MapStream
    {
        const int PollMs = 5;

        readonly IntPtr work;
        readonly Action beforeWaiting;
        readonly Thread owner = Thread.CurrentThread;
        bool isOver;

        /// <summary>Why the rows ended early. A handler that has caught it would take what it has got for all rows.</summary>
        public volatile Exception Cut;

        public MapStream(IntPtr work, Action beforeWaiting)
        {
            this.work = work;
            this.beforeWaiting = beforeWaiting;
        }

        /// <summary>
        /// Waits for the next batch; null after the last, and once the rows were cut off: a handler that asks until there are no more ends. A
        /// thread that outlives its call gets Cancelled.
        /// </summary>
        public GivenColumn[] Next(out int rows)
        {
            lock (this)
            {
                while (true)
                {
                    rows = 0;
                    if (Cut != null) return null;
                    if (isOver) throw new Cancelled();
                    beforeWaiting();
                    GivenColumn[] columns;
                    // While the thread that gives results waits for rows, it gives none. Another thread must not hold it up.
                    if (Core.NextColumns(work, Thread.CurrentThread == owner ? -1 : 0, out rows, out columns)) return columns;
                    Monitor.Wait(this, PollMs);
                }
            }
        }

        /// <summary>The work is about to end: nobody may use it any more. Why the rows ended early, if they did.</summary>
        public Exception End()
        {
            lock (this)
            {
                isOver = true;
                return Cut;
            }
        }
    }

    /// <summary>The groups of one exchange of an aggregate function: states by number.</summary>
    sealed class Groups
    {
        readonly Function function;
        readonly Dictionary<long, object> states = new Dictionary<long, object>();

        public Groups(Function function)
        {
            this.function = function;
        }

        /// <summary>Does one step (docs/protocol.md §4). The columns of the reply; steps without results have none.</summary>
        public Results[] Answer(Call call, GivenColumn[] columns, Step step)
        {
            var reply = function.NewReply();
            for (var row = 0; row < call.Rows; row++)
            {
                call.CheckCancelled();
                var number = columns[0].Integers[row];
                switch (step)
                {
                    case Step.Accumulate: function.Step(call, State(number, row), columns, row); break;
                    case Step.Merge: function.Merge(call, State(number, row), columns[columns.Length - 1].Bytes(row), row); break;
                    case Step.Finish:
                        function.Finish(call, State(number, row), row, reply[0]);
                        reply[1].Add(null);
                        break;
                    case Step.State:
                        reply[0].Add(null);
                        reply[1].Add(function.Serialize(State(number, row), row));
                        break;
                    default: states.Remove(number); break;
                }
            }
            return step == Step.Finish || step == Step.State ? reply : new Results[0];
        }

        object State(long number, int row)
        {
            object state;
            if (!states.TryGetValue(number, out state)) states[number] = state = function.NewState(row);
            return state;
        }
    }
}
