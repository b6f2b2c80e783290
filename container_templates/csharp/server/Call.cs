using System;
using System.Threading;
using System.Threading.Tasks;

namespace Transship
{
    /// <summary>A batch under way.</summary>
    sealed class Call
    {
        const int LookMs = 20;

        public readonly IntPtr Work;
        public readonly int Rows;
        public readonly bool HasRowErrors;
        readonly CancellationTokenSource source = new CancellationTokenSource();

        public Call(IntPtr work, Core.WorkInfo info)
        {
            Work = work;
            Rows = (int)info.Rows;
            HasRowErrors = info.RowErrors != 0;
        }

        /// <summary>What a handler that takes it may listen to.</summary>
        public CancellationToken Token { get { return source.Token; } }

        /// <summary>Ends the call if its client has gone. It is called before each row and result.</summary>
        public void CheckCancelled()
        {
            if (Core.IsCancelled(Work)) throw new Cancelled();
        }

        /// <summary>Waits until one of these tasks has ended, or the client has gone.</summary>
        public void WaitAny(Task[] tasks)
        {
            while (Task.WaitAny(tasks, LookMs) < 0) CheckCancelled();
        }

        /// <summary>Tells tasks that still run that nobody waits for them.</summary>
        public void CancelTasks()
        {
            try
            {
                source.Cancel();
            }
            catch (AggregateException cause)
            {
                Console.Error.WriteLine("transship: a handler failed when it was cancelled: " + cause.InnerException);
            }
        }
    }
}
